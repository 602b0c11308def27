"""Images with their verdicts: a card, a gallery, a small copy inside the page, a link to the file."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

from deltaenergy.data.items import ImageItem, square_jpeg
from deltaenergy.detector.verdict import Verdict
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
    """One image of an evaluation with its verdict, and its true class if known."""

    item: ImageItem
    verdict: Verdict
    group: Group
    truth: str | None
    correct: bool | None

    @property
    def wrongly_kept(self) -> bool:
        return self.group is Group.OPEN and not self.verdict.is_ood

    @property
    def wrongly_rejected(self) -> bool:
        return self.group is not Group.OPEN and bool(self.verdict.is_ood)

    @property
    def wrong_class(self) -> bool:
        return not self.verdict.is_ood and self.correct is False and self.group is not Group.OPEN

    @property
    def missed(self) -> str:
        """What the image is, in words, if the verdict is wrong; otherwise empty."""
        if not (self.wrongly_kept or self.wrongly_rejected or self.wrong_class):
            return ""
        if self.truth:
            return f"is {isolated(self.truth)}"
        return "is none of these" if self.wrongly_kept else "is one of the classes"


def judged_images(evaluation: Evaluation, one: EvaluatedSet) -> list[JudgedImage]:
    """The images of a set with the primary score's verdicts."""
    spec, rejected = evaluation.primary, evaluation.is_ood(one)
    judged = []
    for i, item in enumerate(one.scored.items):
        label, confidence = evaluation.classes[one.scored.predicted[i]], float(one.scored.confidence[i])
        score = float(one.scored.values[spec][i])
        verdict = Verdict(item.id, label, confidence, spec, score, None, bool(rejected[i]))
        truth = evaluation.classes[one.labels[i]] if one.labelled[i] else item.label
        judged.append(JudgedImage(item, verdict, one.group, truth, bool(one.correct[i]) if one.labelled[i] else None))
    return judged


def named(verdict: Verdict) -> str:
    label = isolated(verdict.label)
    return f"closest class {label}" if verdict.is_ood else f"{label}, {percent(verdict.confidence, 0)}"


def said(verdict: Verdict, missed: str = "") -> list[Child]:
    """The verdict, the class, and what the image is if the verdict is wrong."""
    css = "verdict none" if verdict.is_ood else "verdict kept"
    return [
        verdict.verdict and tag("span", f"{'✕' if verdict.is_ood else '✓'} {verdict.verdict}", class_=css),
        tag("span", named(verdict), class_="what"),
        tag("span", missed, class_="truth") if missed else None,
    ]


def gallery(heading: str, images: Sequence[JudgedImage], *, note: Child = None, shown: int = SHOWN) -> Markup:
    """A heading with the number of images, and the first of them."""
    total = len(images)
    many = count(total, "image") if total <= shown else f"{shown} of {count(total, 'image')}"
    return join(
        tag("h3", heading, " ", tag("span", f"({many})", class_="count")),
        tag("p", note, class_="small") if note else None,
        tag("ul", [tag("li", card(one.item, one.verdict, one.missed)) for one in images[:shown]], class_="images"),
    )


def unlisted(images: Sequence[JudgedImage], folder: Path) -> Markup | None:
    """The images that a gallery does not show, one line each, folded."""
    if not images:
        return None
    lines = []
    for image in images:
        link = file_link(image.item, folder)
        words = named(image.verdict), image.missed, f"score {score_value(image.verdict.score)}"
        name = tag("a", image.item.id, href=link) if link else tag("code", image.item.id)
        lines.append(tag("li", name, " ", tag("span", "; ".join(filter(None, words)), class_="small")))
    return folded(f"The other {len(images):,}", tag("ol", lines, class_="rest"))


def card(
    item: ImageItem,
    verdict: Verdict,
    missed: str = "",
    *,
    link: str | None = None,
    embed: bool = True,
    details: Child = None,
) -> Markup:
    """An image with its verdict and a link to its file; without `embed` the file itself is shown."""
    name = PurePath(item.id).name or item.id
    source = thumbnail(item) if embed or link is None else link
    alternative = f"{isolated(name)}: {verdict.verdict}, closest class {isolated(verdict.label)}"
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
    caption = tag(
        "figcaption",
        said(verdict, missed),
        tag("span", f"score {score_value(verdict.score)}", class_="file"),
        tag("span", details, class_="file") if details else None,
        tag("a" if link else "span", name, class_="file", title=item.id, href=link),
    )
    return tag("figure", shown, caption, class_="image wrong" if missed else "image")
