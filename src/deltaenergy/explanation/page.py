"""Explanations as a page or as one PNG per image, and the worst mistakes of an evaluation for its report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from deltaenergy.core.progress import Progress, stage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE, Verdict
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import EvaluatedSet, Evaluation, Group
from deltaenergy.explanation.energy import energy_figure, energy_parts, energy_settings
from deltaenergy.explanation.explain import Explainer, Explanations
from deltaenergy.explanation.explanation import Explanation, jpeg_uri
from deltaenergy.explanation.methods import AUTO, CLASS, SCORE, check_method
from deltaenergy.explanation.why import NearClass, NearImage, ScoreReason, WhyRejected
from deltaenergy.files import check_writable, write_text
from deltaenergy.models.on import On
from deltaenergy.report import images
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import JudgedImage, file_link, judged_images, said
from deltaenergy.report.page import Section, Tile, detector_page, table, tiles, unreadable_note
from deltaenergy.report.words import count, percent, score_value
from deltaenergy.scores.base import Scorer
from deltaenergy.source import require_images

PAGES = frozenset({".html", ".htm"})
# Number of closest classes on the card of a kept image.
NEAREST = 3
READING = (
    "On the left, what the model saw; on the right, the same in grey under the heatmap. Each heatmap runs from its "
    "smallest value (dark blue) to its largest (yellow): compare the numbers of two images, not their colours. A "
    "heatmap shows what a model reacts to, which may differ from what a person would use."
)
# Kind of mistake, heading, target of the heatmap, and sort order (worst first).
_MISTAKES = (
    ("wrongly_kept", "Wrongly kept: what raised the score", SCORE, lambda one: -one[0].verdict.score),
    ("wrongly_rejected", "Wrongly rejected: what could have raised the score", SCORE, lambda one: one[0].verdict.score),
    ("wrong_class", "Wrong class: what supported it", CLASS, lambda one: -one[0].verdict.confidence),
)


@dataclass(frozen=True)
class ExplainSummary:
    """The number of explained images, and the unreadable images."""

    images: int
    unreadable: list[Unreadable]


def write_explanations(
    by: By,
    images: Any,
    out: str | Path,
    method: str = AUTO,
    target: str = CLASS,
    *,
    on: str | On = "auto",
    command: str | None = None,
) -> ExplainSummary:
    """Explain images on a page `out` (.html), or as PNGs in a folder `out`, in bounded memory.

    PNGs are written as they are made, the page at the end; an interrupted run is not resumed. Other arguments are as in
    `explain`.
    """
    source, out = DetectorSource.of(by, on, "explain"), Path(out)
    check_method(method)
    items = list(require_images(images, "explain"))
    is_page = out.suffix.lower() in PAGES
    if is_page:
        check_writable(out, argument="out")
    names = [] if is_page else png_names([item.id for item in items], out)
    explainer = Explainer.open(source, method, target)
    unreadable: list[Unreadable] = []

    def explained(progress: Progress) -> Iterator[tuple[Explanation, int]]:
        """Each explanation, and the position of its image: unreadable images have none."""
        rows = iter(range(len(items)))
        for part in explainer.batches(items, batch_size=source.on.batch_size, progress=progress):
            unreadable.extend(part.unreadable)
            for one in part:
                yield one, next(row for row in rows if items[row].id == one.id)

    with stage("Explaining") as progress:
        found = explained(progress)
        if is_page:
            linked = ((one, file_link(items[row], out.parent)) for one, row in found)
            write_text(out, _page(linked, explainer, unreadable, None, command))
        else:
            for one, row in found:
                one.save(out / names[row])
    return ExplainSummary(len(items) - len(unreadable), unreadable)


def explanations_page(found: Explanations, folder: Path, title: str | None, command: str | None) -> str:
    """The page of finished explanations, for a file in `folder`."""
    linked = ((one, file_link(ImageItem(one.id, Path(one.id)), folder)) for one in found)
    return _page(linked, found.explainer, found.unreadable, title, command)


def png_names(images: Sequence[str], folder: str | Path) -> list[str]:
    """A name in `folder` for each PNG, with a number for duplicates.

    Raises `InputError` if the folder cannot be written. Other files of that name are the user's own and are never
    replaced.
    """
    check_writable(folder, folder=True, argument="out")
    names: list[str] = []
    taken: set[str] = set()
    for image in images:
        stem = re.sub(r"[^\w.-]+", "_", PurePath(image).stem)[:100].lstrip(".") or "image"
        name, number = f"{stem}.png", 2
        while name.lower() in taken:
            name, number = f"{stem}-{number}.png", number + 1
        taken.add(name.lower())
        names.append(name)
    for file in (Path(folder) / name for name in names):
        if file.exists() and not _is_ours(file):
            raise InputError(f"{file} is not a heatmap of deltaenergy and would be replaced. Choose another folder.")
    return names


def _is_ours(file: Path) -> bool:
    try:
        with Image.open(file, formats=["PNG"]) as image:
            return image.info.get("Software") == "deltaenergy"
    except (OSError, UnidentifiedImageError, ValueError):
        return False


def _page(
    linked: Iterable[tuple[Explanation, str | None]],
    explainer: Explainer,
    unreadable: Sequence[Unreadable],
    title: str | None,
    command: str | None,
) -> str:
    """The page of explanations with the links to their files; `unreadable` may grow while these are read."""
    judge, method, cards, judged = explainer.judge, explainer.method, list[Markup](), Counter[str | None]()
    for one, link in linked:
        cards.append(card(one, explainer, link=link))
        judged[None if one.verdict is None else one.verdict.verdict] += 1
    words = {SCORE: "what drives the score", CLASS: "what supports the predicted class"}
    what = words.get(explainer.target, f"what supports {explainer.target}")
    text = f"Heatmaps of {count(len(cards), 'image')}: {what}, by {method.name}: {method.summary}."
    figures = [Tile("Images", f"{len(cards):,}")]
    if judge is not None:
        figures += [Tile(word.capitalize(), f"{judged[word]:,}") for word in (KNOWN, NONE_OF_THESE)]
    figures.append(Tile("Unreadable", f"{len(unreadable):,}"))
    summary = join(tag("p", text, class_="answer"), tiles(figures), unreadable_note(unreadable))
    return detector_page(
        title or "Why each image got its verdict",
        [
            Section("summary", "Summary", summary),
            Section("images", "Images", tag("div", cards, class_="explanations"), READING),
        ],
        judge or explainer.classifier,
        what=f"heatmap {method.name}",
        command=command,
        guarantee=None if judge is None else judge.guarantee,
    )


def card(one: Explanation, explainer: Explainer, *, link: str | None = None, missed: str = "") -> Markup:
    """The image as a panel: its verdict, why it was rejected, the heatmap, and the details.

    `link` leads to its file; `missed` says what the image is, if the verdict is wrong.
    """
    name, verdict = PurePath(one.id).name or one.id, one.verdict
    lines = said(verdict or Verdict(one.id, one.label, one.confidence, "", 0.0, None, None), missed)
    why = []
    if verdict is not None:
        p = "" if verdict.p_value is None else f", p {verdict.p_value:.3f}"
        lines.append(tag("span", f"score {score_value(verdict.score)}{p}", class_="file"))
        if verdict.is_ood and explainer.reasons is not None:
            why = explainer.reasons.of([verdict], one.similarities[None], one.features[None])
    seen = _image(jpeg_uri(one.image), f"{isolated(name)}, as the model saw it", 224)
    (energy,) = energy_parts(one.similarities[None], explainer.classifier.classes, *energy_settings(explainer.scorer))
    return tag(
        "article",
        tag("p", lines, class_="said"),
        [tag("p", in_words(reasons)) for reasons in why],
        tag(
            "div",
            tag("a", seen, href=link) if link else tag("span", seen),
            tag("span", _image(jpeg_uri(one.overlay()), one.in_words, 224)),
            class_="pair",
        ),
        _scale(one),
        tag("p", tag("a", name, href=link) if link else name, class_="file", title=one.id),
        tag(
            "details",
            tag("summary", "The classes and the energy behind it"),
            [why_tables(reasons) for reasons in why] or _closest(one, explainer.classifier.classes),
            energy_figure(energy),
        ),
        class_="explained wrong" if missed else "explained",
    )


def _image(source: str, alternative: str, side: int) -> Markup:
    return tag("img", src=source, alt=alternative, loading="lazy", decoding="async", width=side, height=side)


def _scale(one: Explanation) -> Markup:
    """The legend, with the heatmap's smallest and largest value."""
    what = "supports a higher score" if one.target == SCORE else f"supports {isolated(one.target)}"
    low, high = (score_value(float(value)) for value in (one.heatmap.min(), one.heatmap.max()))
    return tag(
        "p",
        tag("span", low),
        tag("span", class_="viridis", role="img", aria_label=f"from dark blue, {low}, to yellow, {high}"),
        tag("span", high),
        tag("span", f"{what} ({one.method})", class_="of"),
        class_="scale",
    )


def _closest(one: Explanation, classes: Sequence[str]) -> Markup:
    order = np.argsort(-one.similarities, kind="stable")[:NEAREST]
    nearest = [tag("li", f"{isolated(classes[k])}: {one.similarities[k]:.4f}") for k in order.tolist()]
    return join(tag("p", "Closest classes"), tag("ol", nearest, class_="rest"))


def in_words(why: WhyRejected) -> str:
    nearest, score = why.classes[0], why.scores[0]
    said = "It was rejected" if why.verdict.is_ood else "It was kept"
    if score.as_low is None:
        said += "."
    else:
        said += f": {score.as_low:,} of {score.images:,} known images score as low (p-value {score.p_value:.3f})."
    said += f" The closest class is {isolated(nearest.name)}, with a similarity of {nearest.similarity:.3f}"
    if nearest.usual is None:
        said += "."
    elif nearest.similarity < nearest.usual[0]:
        said += f", lower than nearly all images of this class (from {nearest.usual[0]:.3f})."
    else:
        said += f", as usual for images of this class (half of them above {nearest.usual[1]:.3f})."
    if why.words:
        word = why.words[0]
        said += f" The strongest negative word is “{isolated(word.word)}”, with {word.similarity:.3f}."
    return said


def why_tables(why: WhyRejected) -> Markup:
    """The closest classes, scores, neighbours and words of one image, and what is missing."""
    parts: list[Child] = [
        table(
            ["class", "similarity", "usual, 5% to 95%", "p-value"],
            [[one.name, f"{one.similarity:.3f}", _usual(one), _p_value(one)] for one in why.classes],
            caption="The closest classes, compared with the calibration images of each",
            numeric=frozenset({1, 2, 3}),
        )
    ]
    if len(why.scores) > 1:
        rows = [[one.spec, score_value(one.value), _as_low(one), _p_value(one)] for one in why.scores]
        caption = "Known images that score as low, by several scores"
        columns = ["score", "value", "score as low", "p-value"]
        parts.append(table(columns, rows, caption=caption, numeric=frozenset({1, 2, 3}), highlighted=frozenset({0})))
    if why.images:
        parts.append(tag("h4", "The closest calibration images"))
        parts.append(tag("ul", [tag("li", _neighbour(one)) for one in why.images], class_="images"))
    if why.words:
        rows = [[one.word, f"{one.similarity:.3f}", percent(one.share)] for one in why.words]
        caption = "The strongest negative words: their probability among all classes and words"
        parts.append(table(["word", "similarity", "share"], rows, caption=caption, numeric=frozenset({1, 2})))
    parts += [tag("p", note, class_="small") for note in why.notes]
    return tag("div", parts, class_="why")


def _usual(one: NearClass) -> str:
    if one.usual is None:
        return f"{one.images} images, too few" if one.images else "–"
    return f"{one.usual[0]:.3f} to {one.usual[2]:.3f} ({one.images} images)"


def _p_value(one: NearClass | ScoreReason) -> str:
    return "–" if one.p_value is None else f"{one.p_value:.3f}"


def _as_low(one: ScoreReason) -> str:
    return "–" if one.as_low is None else f"{one.as_low:,} of {one.images:,}"


def _neighbour(one: NearImage) -> Markup:
    name = PurePath(one.name).name or one.name
    alternative = f"{isolated(name)}, a calibration image classified as {isolated(one.named)}"
    if one.thumbnail:
        shown = _image(images.jpeg_uri(one.thumbnail), alternative, 128)
    else:
        shown = tag("span", "no image", class_="no-image", role="img", aria_label=alternative)
    caption = tag(
        "figcaption",
        tag("span", one.named, class_="what"),
        tag("span", f"cosine {one.cosine:.3f}", class_="what"),
        tag("span", f"score {score_value(one.score)}", class_="file"),
        tag("span", name, class_="file", title=one.name),
    )
    return tag("figure", shown, caption, class_="image")


def mistakes_section(evaluation: Evaluation, most: int) -> Section:
    """Heatmaps for the `most` worst mistakes of each kind, by the primary score at its threshold."""
    scored = [
        pair for one in evaluation.sets for pair in zip(judged_images(evaluation, one), _scorers(evaluation, one))
    ]
    parts: list[Markup] = []
    with stage("Explaining mistakes"):
        for kind, heading, target, worst in _MISTAKES:
            chosen = sorted((one for one in scored if getattr(one[0], kind)), key=worst)[:most]
            if chosen:
                cards = [_mistake_card(image, scorer, target) for image, scorer in chosen]
                parts.append(join(tag("h3", heading), tag("div", cards, class_="explanations")))
    body = join(parts) if parts else tag("p", "There are no mistakes to explain.")
    return Section("explained", "Worst mistakes, explained", body, READING)


def _scorers(evaluation: Evaluation, one: EvaluatedSet) -> list[Scorer]:
    """The scorer of each image of a set: for a cross-fitted score, that of its fold."""
    scorer, images = one.scorers[evaluation.primary], len(one.scored.items)
    if isinstance(scorer, Scorer):
        return [scorer] * images
    return [scorer.scorers[fold] for fold in scorer.folds_of(range(images), known=one.group is Group.ID)]


def _mistake_card(image: JudgedImage, scorer: Scorer, target: str) -> Markup | None:
    """The card of a mistake; None if the image cannot be read any more."""
    detector, item = Detector(scorer.classifier, scorer.score, state=scorer.state), _with_pixels(image.item)
    explainer = Explainer(detector, target=target)
    try:
        found = list(explainer.stream([item]))
    except InputError:
        # A score without a gradient: its heatmaps are made by covering parts.
        if explainer.method.name == "occlusion":
            raise
        explainer = Explainer(detector, "occlusion", target)
        found = list(explainer.stream([item]))
    if not found:
        return None
    return card(replace(found[0], verdict=image.verdict), explainer, missed=image.missed)


def _with_pixels(item: ImageItem) -> ImageItem:
    """An image of a feature store, by its file."""
    if item.row is None:
        return item
    if not Path(item.id).is_file():
        raise InputError(f"Explaining mistakes needs the image files, and {item.id} no longer exists.")
    return ImageItem(item.id, Path(item.id))
