"""The report of an evaluation: what was asked and found, metrics, classes, curves, pictures, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group
from deltaenergy.report.axes import percent as percent_tick
from deltaenergy.report.charts import Curve, HistogramRow, curve_chart, histogram_chart, legend_key
from deltaenergy.report.classification import classification_section
from deltaenergy.report.disagreement import disagreement_section
from deltaenergy.report.galleries import is_small, picture_sections
from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.report.metrics import accuracy_table, metrics_section, pairs_of, whole_groups
from deltaenergy.report.page import Section, figure, render_page
from deltaenergy.report.provenance import provenance_section, score_table
from deltaenergy.report.summary import summary_section
from deltaenergy.report.words import count, percent

GROUP_COLOURS = {Group.ID: 0, Group.SHIFTED: 2, Group.OPEN: 1}
# More curves than this in one chart cannot be told apart.
MOST_CURVES = 8
MOST_ROC_CHARTS = 6
# From this AUROC on, the corner is drawn again, enlarged.
NEAR_PERFECT = 0.97

_HISTOGRAM_LEAD = (
    "In a histogram, each row is one set of pictures; the further its hill lies to the right, the more it looks like "
    "the classes. "
)
_ROC_LEAD = (
    "In a ROC curve, every threshold is a point: how many open pictures are kept by mistake (across) for how many "
    "known pictures are kept (up). The further it bends to the upper left, the better; the dotted diagonal is chance."
)


def evaluation_page(
    evaluation: Evaluation,
    title: str | None = None,
    folder: Path | None = None,
    *,
    more: Sequence[Section] = (),
) -> str:
    """The whole report as one HTML document; `folder` is where it will lie, for its links to the files.

    Sections that others made, `more`, stand after the pictures.
    """
    made = evaluation.provenance
    sections = []
    if evaluation.detection:
        sections.append(metrics_section(evaluation))
    elif evaluation.accuracy:
        sections.append(Section("metrics", "Accuracy", accuracy_table(evaluation)))
    if named := classification_section(evaluation):
        sections.append(named)
    if curves := _roc_charts(evaluation):
        sections.append(Section("roc", "ROC curves", _panels(curves), _ROC_LEAD))
    # A handful of pictures speaks for itself and comes first; of many, the figures do.
    pictures = picture_sections(evaluation, folder)
    sections = [*pictures, *sections] if is_small(evaluation) else [*sections, *pictures]
    sections += more
    if apart := disagreement_section(evaluation):
        sections.append(apart)
    sections.append(_histogram_section(evaluation))
    sections.insert(0, summary_section(evaluation))
    scores = score_table(evaluation.scores, evaluation.thresholds, evaluation.given_thresholds)
    sections.append(provenance_section(made, scores))
    subtitle = " · ".join(
        [
            f"model {made['model']['name']}",
            count(len(evaluation.classes), "class", "classes"),
            f"score {evaluation.primary}",
            str(made["date"])[:10],
        ]
    )
    return render_page(
        title or "Open-world evaluation",
        subtitle,
        sections,
        footer=f"Made by deltaenergy {made['versions']['deltaenergy']}. This file is complete in itself: it loads "
        "nothing from the network.",
    )


def _panels(figures: list[Markup]) -> Markup:
    """Charts of one kind, in rows whose axes are level."""
    return tag("div", figures, class_="panels even")


def _histogram_section(evaluation: Evaluation) -> Section:
    """Small, and folded if there are several: figures come first, and few readers look at every score."""
    panels = _histograms(evaluation)
    body = tag("div", panels, class_="panels small-charts")
    if len(panels) > 1:
        body = tag("details", tag("summary", f"The histograms of {count(len(panels), 'score')}"), body)
    return Section("scores", "Scores of every set", body, [_HISTOGRAM_LEAD, _threshold_words(evaluation)])


def _threshold_words(evaluation: Evaluation) -> str:
    if evaluation.thresholds[evaluation.primary] is None:
        return "The detector’s score was cross-fitted and has no single threshold: no line is drawn."
    if evaluation.primary in evaluation.given_thresholds:
        return "The upright line is the detector’s own threshold."
    return f"The upright line is the threshold that keeps {percent(evaluation.keep, 0)} of the known pictures."


def _histograms(evaluation: Evaluation) -> list[Markup]:
    panels = []
    for spec, about in evaluation.scores.items():
        rows = []
        for one in evaluation.sets:
            values = one.scored.values[spec]
            kept = float(np.mean(~evaluation.is_ood(one, spec)))
            note = f"{one.group.value}, {percent(kept, 0)} of {len(one):,} kept"
            rows.append(HistogramRow(one.name, values, GROUP_COLOURS[one.group], note))
        said = "; ".join(f"{isolated(row.label)}: {row.note}" for row in rows)
        chart = histogram_chart(
            rows,
            title=f"Histogram of {spec}",
            x_label=f"{spec} (larger = more like the known)",
            threshold=evaluation.thresholds[spec],
            below=NONE_OF_THESE,
            above=KNOWN,
            description=said,
            width=300,
        )
        panels.append(figure(chart, join(spec, tag("span", about["summary"], class_="sub"))))
    return panels


def _roc_charts(evaluation: Evaluation) -> list[Markup]:
    pairs = pairs_of(evaluation)
    if len(pairs) > MOST_ROC_CHARTS:
        # Of many sets, only what stands for a whole group is drawn; the others are in the tables.
        pairs = {key: rows for key, rows in pairs.items() if key[0] in whole_groups(evaluation)}
    return [_roc_panel(evaluation, rows) for rows in pairs.values()]


def _roc_panel(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    order = list(evaluation.scores)
    ranking = sorted(rows, key=lambda row: -row.metrics["auroc"].value)
    shown = [row for row in ranking if row.score == evaluation.primary]
    shown += [row for row in ranking if row.score != evaluation.primary][: MOST_CURVES - 1]
    curves = []
    for row in shown:
        x, y = evaluation.ranked(row).roc_curve()
        curves.append(Curve(row.score, x, y, index=order.index(row.score)))
    closed, opened = isolated(rows[0].closed), isolated(rows[0].open)
    corner = _corner(curves, evaluation.keep) if ranking[0].metrics["auroc"].value >= NEAR_PERFECT else None
    chart = curve_chart(
        curves,
        title=f"ROC curves of {closed} against {opened}",
        description="; ".join(f"{row.score}: AUROC {percent(row.metrics['auroc'].value)}" for row in ranking),
        x_label=f"share of {opened} kept",
        y_label=f"share of {closed} kept",
        x_range=(0, 1),
        y_range=(0, 1),
        x_format=percent_tick,
        y_format=percent_tick,
        diagonal=True,
        y_mark=(evaluation.keep, percent(evaluation.keep, 0)),
        height=330,
    )
    drawn = {row.score for row in shown}
    legend = [
        tag(
            "li",
            legend_key(order.index(row.score)),
            tag("span", row.score, class_="name"),
            tag("span", percent(row.metrics["auroc"].value), class_="figure"),
        )
        for row in ranking
        if row.score in drawn
    ]
    left_out = len(rows) - len(shown)
    said = f"{count(left_out, 'more score')} with no higher AUROC: see the tables."
    more = tag("p", said, class_="small") if left_out else None
    caption = join(f"{closed} against {opened}", tag("span", "AUROC beside each name", class_="sub"))
    return figure(join(chart, corner, tag("ul", legend, class_="legend"), more), caption)


def _corner(curves: list[Curve], keep: float) -> Markup | None:
    """The upper left corner, enlarged: where all curves are near it, the whole square shows nothing."""
    reach = max(1 - keep, min(float(np.interp(keep, curve.y, curve.x)) for curve in curves))
    side = next((side for side in (0.02, 0.05, 0.1, 0.2) if side >= 1.5 * reach), None)
    if side is None:
        return None
    parts = []
    for curve in curves:
        x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
        enters = float(np.interp(1 - side, y, x))
        if enters >= side:
            continue
        inside = (x <= side) & (y >= 1 - side)
        leaves = max(1 - side, float(np.interp(side, x, y)))
        parts.append(Curve(curve.label, [enters, *x[inside], side], [1 - side, *y[inside], leaves], index=curve.index))
    return curve_chart(
        parts,
        title=f"The corner of {percent(side, 0)}, enlarged",
        x_label="the same, enlarged corner",
        y_label="",
        x_range=(0, side),
        y_range=(1 - side, 1),
        x_format=percent_tick,
        y_format=percent_tick,
        y_mark=(keep, percent(keep, 0)),
        height=240,
    )
