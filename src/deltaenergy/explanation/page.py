"""`write_explanations`: a page, or one PNG per image, for any number of images; a run that was killed goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from PIL import Image, UnidentifiedImageError

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE
from deltaenergy.errors import InputError
from deltaenergy.evaluation.provenance import provenance_of
from deltaenergy.explanation.cards import card
from deltaenergy.explanation.explanation import Explanation
from deltaenergy.explanation.finished import Finished, FinishedImages, image_key, request_of
from deltaenergy.explanation.methods import AUTO
from deltaenergy.explanation.run import Explainer
from deltaenergy.explanation.targets import CLASS, SCORE
from deltaenergy.files import replacing
from deltaenergy.report.html import Markup, join, tag
from deltaenergy.report.images import file_link
from deltaenergy.report.page import (
    Section,
    Tile,
    detector_scores,
    provenance_section,
    render_page,
    tiles,
    unreadable_note,
)
from deltaenergy.report.words import count
from deltaenergy.source import load_images

# Stands for the cards while the page around them is made: they are written one by one.
_PLACE = "<!--cards-->"
_ENDS = {".html", ".htm"}


@dataclass(frozen=True)
class Written:
    """What a run has done: how many images it explained, how many of them were finished before, and the others."""

    images: int
    from_before: int
    unreadable: list[Unreadable]


def write_explanations(
    judge: Detector | Classifier,
    images: Any,
    page: str | Path | None = None,
    *,
    png: str | Path | None = None,
    method: str = AUTO,
    target: str = CLASS,
    batch_size: int = 32,
    progress: Progress | None = None,
    command: str | None = None,
) -> Written:
    """Explain images on a page, as a PNG each in the folder `png`, or both.

    Finished images are kept in `PAGE.parts` until all are done: after an interruption, the same call goes on.
    """
    if page is None and png is None:
        raise InputError("write_explanations: give a page to write, a folder for PNGs, or both.")
    explainer = Explainer(judge, method, target)
    items = load_images(images)
    place = None if page is None else Path(page)
    folder = None if png is None else Path(png)
    names = png_names(items, folder)
    parts = Path(f"{place or folder}.parts")
    request = request_of(explainer, page=place is not None, png=folder is not None)
    with FinishedImages(parts, request) as finished:
        known = {n: done for n, item in enumerate(items) if (done := finished.get(n, item)) and _there(done, folder)}
        rest = [n for n in range(len(items)) if n not in known]
        ahead = _shifted(progress, len(known), len(items))
        stream = explainer.stream([items[n] for n in rest], batch_size=batch_size, progress=ahead)
        for number, one in _numbered(stream, rest, items):
            if folder is not None:
                one.save(folder / names[number])
            finished.put(number, _done(one, items[number], explainer, place, names[number] if folder else ""))
        if place is not None:
            _write_page(place, finished, items, explainer, stream.unreadable, command)
        return Written(len(items) - len(stream.unreadable), len(known), stream.unreadable)


def check_page_name(page: Path, option: str = "page") -> None:
    """Raise `InputError` unless the name is that of an HTML file."""
    if page.suffix.lower() not in _ENDS:
        raise InputError(f"{option} {page}: the page is an HTML file, so that its name must end in .html.")


def png_names(items: Sequence[ImageItem], folder: Path | None) -> list[str]:
    """A name for each image's PNG: its own, with a number where several have the same.

    A file of that name in `folder` that is not such a PNG is refused: it is the user's own.
    """
    taken: set[str] = set()
    names = []
    for item in items:
        stem = re.sub(r"[^\w.-]+", "_", PurePath(item.id).stem)[:100].lstrip(".") or "image"
        name, number = f"{stem}.png", 2
        while name.lower() in taken:
            name, number = f"{stem}-{number}.png", number + 1
        taken.add(name.lower())
        names.append(name)
    for name in names if folder is not None else ():
        assert folder is not None
        if (folder / name).exists() and not _is_ours(folder / name):
            raise InputError(
                f"{folder / name} is a file of your own, and a map of that name would replace it. Give another folder."
            )
    return names


def _is_ours(file: Path) -> bool:
    try:
        with Image.open(file, formats=["PNG"]) as image:
            return image.info.get("Software") == "deltaenergy"
    except (OSError, UnidentifiedImageError, ValueError):
        return False


def _there(done: Finished, folder: Path | None) -> bool:
    return folder is None or bool(done.png and (folder / done.png).is_file())


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress over all images, of which some were done before."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _numbered(
    stream: Iterator[Explanation], rest: Sequence[int], items: Sequence[ImageItem]
) -> Iterator[tuple[int, Explanation]]:
    """Explanations with their images' numbers: those that could not be read are missing from the stream."""
    waiting = iter(rest)
    for one in stream:
        for number in waiting:
            if items[number].id == one.id:
                yield number, one
                break


def _done(one: Explanation, item: ImageItem, explainer: Explainer, page: Path | None, png: str) -> Finished:
    said = "" if one.verdict is None else one.verdict.verdict
    shown = "" if page is None else str(card(one, explainer, link=file_link(item, page.parent)))
    return Finished(image_key(item), said, png, shown)


def _write_page(
    place: Path,
    finished: FinishedImages,
    items: Sequence[ImageItem],
    explainer: Explainer,
    unreadable: Sequence[Unreadable],
    command: str | None,
) -> None:
    said: list[str] = []

    def cards() -> Iterator[str]:
        for number, item in enumerate(items):
            done = finished.get(number, item)
            if done is not None:
                yield done.card

    for number, item in enumerate(items):
        done = finished.get(number, item)
        said += [] if done is None else [done.said]
    before, after = _around(said, explainer, unreadable, command).split(_PLACE)
    with replacing(place) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(before)
        file.writelines(cards())
        file.write(after)


def _around(said: Sequence[str], explainer: Explainer, unreadable: Sequence[Unreadable], command: str | None) -> str:
    """The page without its cards."""
    detector, method = explainer.detector, explainer.method
    promise = None if detector is None or detector.guarantee is None else str(detector.guarantee)
    made = provenance_of(explainer.classifier, command=command, guarantee=promise)
    judged = any(said)
    what = {SCORE: "what moves the score", CLASS: "what speaks for the class it was named"}.get(
        explainer.target, f"what speaks for {explainer.target}"
    )
    figures = [Tile("Pictures", f"{len(said):,}")]
    if judged:
        figures += [Tile(word.capitalize(), f"{said.count(word):,}") for word in (KNOWN, NONE_OF_THESE)]
    figures.append(Tile("Unreadable", f"{len(unreadable):,}"))
    text = f"Where in each of {count(len(said), 'picture')} it stands {what}, by {method.name}: {method.summary}."
    scores = Markup("")
    if detector is not None and detector.calibration is not None:
        scores = detector_scores(detector)
    sections = [
        Section(
            "summary", "Summary", join(tag("p", text, class_="answer"), tiles(figures), unreadable_note(unreadable))
        ),
        Section("pictures", "Pictures", tag("div", Markup(_PLACE), class_="explanations"), READING),
        provenance_section(made, scores),
    ]
    subtitle = " · ".join([f"model {made['model']['name']}", f"map {method.name}", str(made["date"])[:10]])
    return render_page("Why each picture was judged so", subtitle, sections)


READING = (
    "On the left, what the model saw; on the right, the same in grey under the map. Each map runs from its own "
    "smallest value, dark blue, to its own largest, yellow: colours of two pictures are not comparable, the numbers "
    "are. A map shows what a model reacts to, which need not be what a person would look at."
)
