"""The page of a detector's verdicts: by class, borderline first, with filters, sorting and enlarging.

It works from a file, offline; scripts only filter, sort and enlarge. The images closest to the threshold are inside the
page as small copies; those beyond `EMBEDDED` are shown from their files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE, Verdict
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.report.charts import HistogramRow, histogram_chart
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import card, file_link
from deltaenergy.report.page import Section, Tile, detector_page, figure, folded, tiles, unreadable_note
from deltaenergy.report.words import count, percent

# Small copies inside the page, all groups together: about six megabytes.
EMBEDDED = 800
# Number of images shown per group; the others are folded.
IN_SIGHT = 48
SORTS = (
    ("", "by class, borderline first"),
    ("borderline", "borderline first"),
    ("low", "lowest score first"),
    ("high", "highest score first"),
    ("unsure", "least confident of the class first"),
    ("sure", "most confident of the class first"),
    ("name", "by name"),
)
DIALOG = (
    '<dialog id="large" aria-label="Enlarged image"><img alt="" src="data:,"><div class="large-caption"></div>'
    '<button type="button" data-step="-1" aria-label="Previous image">‹</button>'
    '<button type="button" data-step="1" aria-label="Next image">›</button>'
    '<button type="button" class="close">Close</button></dialog>'
)
Judged = Sequence[tuple[ImageItem, Verdict]]
Margin = Callable[[Verdict], float]


def verdicts_page(
    verdicts: Verdicts, detector: Detector, folder: Path, title: str | None = None, command: str | None = None
) -> str:
    """The whole page as one HTML document; `folder` is where it will be, for its links to the files.

    Without `items`, the images are found by their paths.
    """
    known, fdr = detector.require_threshold(), verdicts.fdr
    images = verdicts.items or [ImageItem(path, Path(path)) for path in verdicts.paths]
    judged = list(zip(images, verdicts, strict=True))
    lines = dividing_lines(judged, detector, fdr)
    sections = [_summary(verdicts, detector)]
    if judged:
        margin = closeness(detector, lines)
        sections += [_images(judged, detector, margin, folder), _scores(judged, detector, lines)]
    return detector_page(
        title or "Verdicts",
        sections,
        detector,
        command=command,
        guarantee=known.guarantee if fdr is None else None,
        script=files("deltaenergy.report").joinpath("verdicts.js").read_text(encoding="utf-8") if judged else "",
    )


def dividing_lines(judged: Judged, detector: Detector, fdr: float | None) -> dict[str, float]:
    """For each class, the score between *known* and *none of these*: its threshold, unless `fdr` decided.

    Then the line is the lowest score that was kept: p-values rise with the score. A cross-fitted score has no line.
    """
    if fdr is None:
        bounds = detector.bounds()
        return {} if bounds is None else dict(zip(detector.classifier.classes, bounds.tolist()))
    kept = [verdict.score for _, verdict in judged if not verdict.is_ood]
    line = min(kept) if kept else max((verdict.score for _, verdict in judged), default=0.0)
    return dict.fromkeys(detector.classifier.classes, line)


def _summary(verdicts: Verdicts, detector: Detector) -> Section:
    rejected, fdr = verdicts.counts.rejected or 0, verdicts.fdr
    known = len(verdicts) - rejected
    text = (
        f"{count(len(verdicts), 'image')}: {known:,} {KNOWN} "
        f"({count(len(detector.classifier.classes), 'class', 'classes')}), {rejected:,} {NONE_OF_THESE}."
    )
    figures = [
        Tile("Images", f"{len(verdicts):,}"),
        Tile(KNOWN.capitalize(), f"{known:,}"),
        Tile(NONE_OF_THESE.capitalize(), f"{rejected:,}"),
        Tile("Unreadable", f"{len(verdicts.unreadable):,}"),
    ]
    promise = str(detector.guarantee)
    if fdr is not None:
        promise = (
            f"At most {percent(fdr, 0)} of the rejected images are {KNOWN} in expectation. No threshold was used: all "
            "images were processed together."
        )
    answer = tag("p", text, class_="answer")
    note = unreadable_note(verdicts.unreadable)
    return Section("summary", "Summary", join(answer, tiles(figures), tag("p", promise), note))


def _images(judged: Judged, detector: Detector, margin: Margin, folder: Path) -> Section:
    groups: dict[str | None, list[tuple[ImageItem, Verdict]]] = {label: [] for label in detector.classifier.classes}
    groups[None] = []
    for pair in sorted(judged, key=lambda pair: margin(pair[1])):
        groups[None if pair[1].is_ood else pair[1].label].append(pair)
    filled = {name: members for name, members in groups.items() if members}
    share = _embedded_of_each([len(members) for members in filled.values()], EMBEDDED)
    links, parts = [], []
    for position, (name, members) in enumerate(filled.items()):
        heading = NONE_OF_THESE.capitalize() if name is None else name
        links.append(tag("li", tag("a", heading, f" ({len(members):,})", href=f"#group-{position}")))
        cards = [
            _item(item, verdict, margin(verdict), folder, embed=rank < share[position])
            for rank, (item, verdict) in enumerate(members)
        ]
        rest = cards[IN_SIGHT:]
        total = tag("span", f"({count(len(members), 'image')})", class_="count")
        parts += [
            tag("h3", heading, " ", total, id=f"group-{position}"),
            tag("ul", cards[:IN_SIGHT], class_="images"),
            folded(f"{len(rest):,} more", tag("ul", rest, class_="images")) if rest else None,
        ]
    body = join(
        _tools(list(filled)),
        tag("div", tag("ul", links, class_="jump") if len(links) > 1 else None, parts, id="groups"),
        tag("ul", id="flat", class_="images", hidden=True),
        tag("button", "Show more", id="more", type="button", hidden=True),
        Markup(DIALOG),
    )
    lead = "Borderline images come first in each group; check those."
    return Section("images", "Images", body, lead)


def closeness(detector: Detector, lines: Mapping[str, float]) -> Margin:
    """How far a verdict is from flipping: by its score, or by its p-value if there is no threshold."""

    def margin(verdict: Verdict) -> float:
        distance = math.inf
        if lines:
            distance = abs(verdict.score - lines[verdict.label])
        elif verdict.p_value is not None:
            known = detector.require_calibration()
            distance = abs(verdict.p_value - known.rank / (len(known.scores) + 1))
        return distance if math.isfinite(distance) else math.inf

    return margin


def _embedded_of_each(sizes: Sequence[int], total: int) -> list[int]:
    """How many images of each group are embedded: as evenly as their sizes allow."""
    shares = [0] * len(sizes)
    left = min(total, sum(sizes))
    while left:
        open_groups = [i for i, size in enumerate(sizes) if shares[i] < size]
        each = max(1, left // len(open_groups))
        for i in open_groups:
            more = min(each, sizes[i] - shares[i], left)
            shares[i] += more
            left -= more
    return shares


def _item(item: ImageItem, verdict: Verdict, margin: float, folder: Path, *, embed: bool) -> Markup:
    details = None if verdict.p_value is None else f"p {verdict.p_value:.3f}"
    if verdict.more_like is not None:
        details = f"more like {isolated(verdict.more_like)}" + ("" if details is None else f", {details}")
    return tag(
        "li",
        card(item, verdict, link=file_link(item, folder), embed=embed, details=details),
        data_verdict=verdict.verdict,
        data_class=verdict.label,
        data_name=item.id,
        data_score=repr(verdict.score) if math.isfinite(verdict.score) else "-1e308",
        data_confidence=repr(verdict.confidence),
        data_margin=repr(margin) if math.isfinite(margin) else "1e308",
    )


def _tools(names: Sequence[str | None]) -> Markup:
    """Filters and sort orders; hidden until the script runs."""
    classes = [name for name in names if name is not None]

    def choice(id_: str, label: str, options: Sequence[tuple[str, str]]) -> Markup:
        found = [tag("option", text, value=value) for value, text in options]
        return tag("label", tag("span", label), tag("select", found, id=id_))

    every: list[Child] = [
        choice("of-verdict", "Verdict", [("", "both"), (KNOWN, KNOWN), (NONE_OF_THESE, NONE_OF_THESE)]),
        choice("of-class", "Class", [("", "all"), *((name, name) for name in classes)]),
        choice("order", "Order", SORTS),
        tag("label", tag("span", "File name"), tag("input", type="search", id="of-name", placeholder="any")),
        tag("output", id="found"),
    ]
    return tag("div", every, id="tools", class_="tools", hidden=True, role="search", aria_label="Filter and sort")


def _scores(judged: Judged, detector: Detector, lines: Mapping[str, float]) -> Section:
    rows = [HistogramRow("these images", np.array([verdict.score for _, verdict in judged]), 1)]
    if len(detector.calibration_scores):
        rows.insert(0, HistogramRow("calibration images", detector.calibration_scores, 0))
    spec, common = detector.score.spec, set(lines.values())
    chart = histogram_chart(
        rows,
        title=f"Histogram of {spec}",
        x_label=f"{spec} (larger = more like the known images)",
        threshold=common.pop() if len(common) == 1 else None,
        below=NONE_OF_THESE,
        above=KNOWN,
    )
    return Section("scores", "Scores", tag("div", figure(chart, spec), class_="panels top"))
