"""Images with their verdicts: a card, a gallery, a small copy inside the page, a link to the file."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

from deltaenergy.data.items import ImageItem, square_jpeg
from deltaenergy.detector.verdict import verdict_word
from deltaenergy.evaluation.results import EvaluatedSet, Evaluation, Group
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import folded
from deltaenergy.report.words import count, percent, score_value

# Twice the width at which they are shown, for dense screens.
SIDE = 256
# As many as fit in one row of the page.
SHOWN = 8


def file_link(item: ImageItem, page_folder: Path) -> str | None:
    """The URL of the image's file relative to the page, or None if there is no file."""
    source = item.path or Path(item.id)
    try:
        if not source.is_file():
            return None
        full = os.path.abspath(source)  # noqa: PTH100
        relative = os.path.relpath(full, os.path.abspath(page_folder))  # noqa: PTH100
    except ValueError:  # another drive, or a name that no file has
        return None
    # The ./ keeps a name such as `http:x.jpg` from being read as a URL.
    return "./" + quote(os.fsencode(relative.replace(os.sep, "/")))


def thumbnail(item: ImageItem, side: int = SIDE) -> str | None:
    """A data URI of the image's central square, or None if there is no image to show (`square_jpeg`)."""
    found = square_jpeg(item, side)
    return None if found is None else jpeg_uri(found)


def jpeg_uri(data: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")


@dataclass(frozen=True)
class JudgedImage:
    """One image with its verdict, and its true class if known."""

    item: ImageItem
    label: str
    confidence: float
    score: float
    is_ood: bool
    group: Group | None = None
    truth: str | None = None
    correct: bool | None = None

    @property
    def wrongly_kept(self) -> bool:
        return self.group is Group.OPEN and not self.is_ood

    @property
    def wrongly_rejected(self) -> bool:
        return self.group in (Group.ID, Group.SHIFTED) and self.is_ood

    @property
    def wrong_class(self) -> bool:
        return not self.is_ood and self.correct is False and self.group is not Group.OPEN

    @property
    def missed(self) -> str:
        """What the image is, in words, if the verdict is wrong; otherwise empty."""
        if not (self.wrongly_kept or self.wrongly_rejected or self.wrong_class):
            return ""
        if self.truth:
            return f"is {isolated(self.truth)}"
        return "is none of these" if self.wrongly_kept else "is one of the classes"

    @property
    def named(self) -> str:
        """The verdict in words."""
        label = isolated(self.label)
        return f"closest class {label}" if self.is_ood else f"{label}, {percent(self.confidence, 0)}"


def judged_images(evaluation: Evaluation, one: EvaluatedSet) -> list[JudgedImage]:
    """The images of a set with the primary score's verdicts."""
    values, verdicts = one.scored.values[evaluation.primary], evaluation.is_ood(one)
    return [
        JudgedImage(
            item,
            label=evaluation.classes[one.scored.predicted[i]],
            confidence=float(one.scored.confidence[i]),
            score=float(values[i]),
            is_ood=bool(verdicts[i]),
            group=one.group,
            truth=evaluation.classes[one.labels[i]] if one.labelled[i] else item.label,
            correct=bool(one.correct[i]) if one.labelled[i] else None,
        )
        for i, item in enumerate(one.scored.items)
    ]


def gallery(heading: str, images: Sequence[JudgedImage], *, note: Child = None, shown: int = SHOWN) -> Markup:
    """A heading with the number of images, and the first of them."""
    total = len(images)
    many = count(total, "image") if total <= shown else f"{shown} of {count(total, 'image')}"
    return join(
        tag("h3", heading, " ", tag("span", f"({many})", class_="count")),
        tag("p", note, class_="small") if note else None,
        tag("ul", [tag("li", card(image)) for image in images[:shown]], class_="images"),
    )


def unlisted(images: Sequence[JudgedImage], folder: Path | None) -> Markup | None:
    """The images that a gallery does not show, one line each, folded."""
    if not images:
        return None
    lines = []
    for image in images:
        link = None if folder is None else file_link(image.item, folder)
        said = [image.named, image.missed, f"score {score_value(image.score)}"]
        text = "; ".join(filter(None, said))
        name = tag("a", image.item.id, href=link) if link else tag("code", image.item.id)
        lines.append(tag("li", name, " ", tag("span", text, class_="small")))
    return folded(f"The other {len(images):,}", tag("ol", lines, class_="rest"))


def card(image: JudgedImage, *, link: str | None = None, embed: bool = True, details: Child = None) -> Markup:
    """An image with its verdict and a link to its file; without `embed` the file itself is shown."""
    name = PurePath(image.item.id).name or image.item.id
    judged = verdict_word(image.is_ood)
    source = thumbnail(image.item) if embed or link is None else link
    alternative = f"{isolated(name)}: {judged}, closest class {isolated(image.label)}"
    if source is None:
        shown = tag("span", "no image", class_="no-image", role="img", aria_label=alternative)
    else:
        # Embedded images load at once and are printed; files load when they come into view.
        waits = "lazy" if source == link else None
        shown = tag("img", src=source, alt=alternative, loading=waits, decoding="async", width=128, height=128)
    if link is not None:
        shown = tag("a", shown, href=link, class_="enlarge")
    elif source is not None:
        shown = tag("span", shown, class_="enlarge")
    css = "none" if image.is_ood else "kept"
    caption = tag(
        "figcaption",
        tag("span", ("✕ " if image.is_ood else "✓ ") + judged, class_=f"verdict {css}"),
        tag("span", image.named, class_="what"),
        tag("span", image.missed, class_="truth") if image.missed else None,
        tag("span", f"score {score_value(image.score)}", class_="file"),
        tag("span", details, class_="file") if details else None,
        tag("a" if link else "span", name, class_="file", title=image.item.id, href=link),
    )
    return tag("figure", shown, caption, class_="image wrong" if image.missed else "image")
