"""The report of a detector's verdicts on pictures of which nothing else is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from deltaenergy.data.items import ImageItem
from deltaenergy.detector import Detector, Predictions
from deltaenergy.errors import NotFittedError
from deltaenergy.evaluation.provenance import provenance_of
from deltaenergy.report.charts import HistogramRow, histogram_chart
from deltaenergy.report.html import Child, join, tag
from deltaenergy.report.page import Section, Tile, figure, render_page, table, tiles
from deltaenergy.report.pictures import Picture, gallery
from deltaenergy.report.provenance import provenance_section, score_table, unreadable_note
from deltaenergy.report.words import count, percent

# A report of verdicts is a contact sheet: so many pictures of each kind.
SHOWN = 40


def predictions_page(
    predictions: Predictions, detector: Detector, *, title: str | None = None, command: str | None = None
) -> str:
    """The whole report as one HTML document."""
    if detector.threshold is None:
        raise NotFittedError("This detector has no threshold yet: call calibrate(in_distribution_images) first.")
    pictures = [
        Picture(ImageItem(v.id, Path(v.id)), v.label, v.confidence, v.score, v.is_ood)
        for v in sorted(predictions, key=lambda verdict: -verdict.score)
    ]
    score = detector.score
    about = {score.spec: {"summary": score.summary, "formula": score.formula, "paper": score.paper}}
    promise = None if detector.guarantee is None else str(detector.guarantee)
    made = provenance_of(detector.classifier, command=command, guarantee=promise)
    sections = [_summary(predictions, detector)]
    if pictures:
        sections += [_scores(pictures, detector), _galleries(pictures)]
    scores = score_table(about, {score.spec: detector.threshold}, frozenset())
    sections.append(provenance_section(made, scores))
    return render_page(
        title or "Verdicts",
        " · ".join([f"model {made['model']['name']}", f"score {score.spec}", made["date"][:10]]),
        sections,
        footer=f"Made by deltaenergy {made['versions']['deltaenergy']}. This file is complete in itself: it loads "
        "nothing from the network.",
    )


def _summary(predictions: Predictions, detector: Detector) -> Section:
    unknown = sum(verdict.is_ood for verdict in predictions)
    known = len(predictions) - unknown
    kept = f" that keeps {percent(detector.keep, 0)} of in-distribution pictures" if detector.keep else ""
    text = (
        f"Of {count(len(predictions), 'picture')}, {known:,} were recognised as one of "
        f"{count(len(detector.classifier.classes), 'class', 'classes')}, and {unknown:,} as none of them, at the "
        f"threshold{kept}."
    )
    figures = [Tile("Pictures", f"{len(predictions):,}"), Tile("Known", f"{known:,}"), Tile("Unknown", f"{unknown:,}")]
    body = join(tag("p", text, class_="answer"), tiles(figures), unreadable_note(predictions.unreadable))
    return Section("summary", "Summary", body)


def _scores(pictures: list[Picture], detector: Detector) -> Section:
    rows = [HistogramRow("these pictures", np.array([p.score for p in pictures]), 1)]
    if len(detector.calibration_scores):
        rows.insert(0, HistogramRow("calibration pictures", detector.calibration_scores, 0))
    spec = detector.score.spec
    chart = histogram_chart(
        rows,
        title=f"Histogram of {spec}",
        x_label=f"{spec} (larger = more in-distribution)",
        threshold=detector.threshold,
        below="unknown",
        above="known",
    )
    counted = Counter(picture.label for picture in pictures if not picture.is_ood)
    found: list[list[Child]] = [[label, f"{number:,}"] for label, number in counted.most_common()]
    classes = table(["class", "pictures"], found, caption="Classes found", numeric=frozenset({1})) if found else None
    panels = tag("div", figure(chart, spec), tag("div", classes), class_="panels top")
    return Section("scores", "Scores and classes", panels)


def _galleries(pictures: list[Picture]) -> Section:
    known = [picture for picture in pictures if not picture.is_ood]
    unknown = [picture for picture in reversed(pictures) if picture.is_ood]
    parts = [
        gallery("Known", known, note="Most confident first.", shown=SHOWN) if known else None,
        gallery("Unknown", unknown, note="Most clearly unknown first.", shown=SHOWN) if unknown else None,
    ]
    return Section("pictures", "Pictures", join(parts))
