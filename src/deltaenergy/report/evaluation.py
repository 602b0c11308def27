"""The report of an evaluation: what was asked and found, the score of every picture, metrics, pictures, provenance."""

from __future__ import annotations

import numpy as np

from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.report.axes import percent as percent_tick
from deltaenergy.report.charts import Curve, HistogramRow, curve_chart, histogram_chart, legend_key
from deltaenergy.report.galleries import is_small, picture_sections
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.page import Section, figure, render_page, table
from deltaenergy.report.provenance import provenance_section, score_table
from deltaenergy.report.summary import summary_section
from deltaenergy.report.words import count, estimate, metric_name, percent, smaller_is_better

GROUP_COLOURS = {Group.ID: 0, Group.SHIFTED: 2, Group.OPEN: 1}
# More curves than this in one chart cannot be told apart.
MOST_CURVES = 8
# More pairs of sets than this are shown as an overview first.
MOST_FULL_TABLES = 2
MOST_ROC_CHARTS = 6
CHARTS_PER_ROW = 3

_HISTOGRAM_LEAD = (
    "In a histogram, each row is one set of pictures; the further its hill lies to the right, the more it looks like "
    "the classes. "
)
_ROC_LEAD = (
    "In a ROC curve, every threshold is a point: how many open pictures are kept by mistake (across) for how many "
    "known pictures are kept (up). The further it bends to the upper left, the better; the dotted diagonal is chance."
)


def evaluation_page(evaluation: Evaluation, title: str | None = None) -> str:
    """The whole report as one HTML document."""
    made = evaluation.provenance
    histograms, curves = _histograms(evaluation), _roc_charts(evaluation)
    if len(histograms) + len(curves) <= CHARTS_PER_ROW:
        lead = [_HISTOGRAM_LEAD, _threshold_words(evaluation), " ", _ROC_LEAD if curves else None]
        sections = [Section("scores", "Scores", tag("div", [*histograms, *curves], class_="panels"), lead)]
        curves = []
    else:
        lead = [_HISTOGRAM_LEAD, _threshold_words(evaluation)]
        sections = [Section("scores", "Scores of every set", _panels(histograms), lead)]
    if evaluation.detection:
        sections.append(_metrics(evaluation))
    elif evaluation.accuracy:
        sections.append(Section("metrics", "Accuracy", _accuracy_table(evaluation)))
    if curves:
        sections.append(Section("roc", "ROC curves", _panels(curves), _ROC_LEAD))
    # A handful of pictures speaks for itself and comes first; of many, the figures do.
    pictures = picture_sections(evaluation)
    sections = [*pictures, *sections] if is_small(evaluation) else [*sections, *pictures]
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


def _threshold_words(evaluation: Evaluation) -> str:
    if evaluation.primary in evaluation.given_thresholds:
        return "The upright line is the detector’s own threshold."
    return f"The upright line is the threshold that keeps {percent(evaluation.keep, 0)} of the ID pictures."


def _histograms(evaluation: Evaluation) -> list[Markup]:
    panels = []
    for spec, about in evaluation.scores.items():
        rows = []
        for one in evaluation.sets:
            values = one.scored.values[spec]
            kept = float(np.mean(values >= evaluation.thresholds[spec]))
            note = f"{one.group.value}, {percent(kept, 0)} of {len(one):,} kept"
            rows.append(HistogramRow(one.name, values, GROUP_COLOURS[one.group], note))
        said = "; ".join(f"{row.label}: {row.note}" for row in rows)
        chart = histogram_chart(
            rows,
            title=f"Histogram of {spec}",
            x_label=f"{spec} (larger = more in-distribution)",
            threshold=evaluation.thresholds[spec],
            description=said,
        )
        panels.append(figure(chart, join(spec, tag("span", about["summary"], class_="sub"))))
    return panels


def _accuracy_table(evaluation: Evaluation) -> Markup | None:
    if not evaluation.accuracy:
        return None
    rows: list[list[Child]] = [
        [row.set, row.group.value, f"{row.images:,}", estimate(row.accuracy)] for row in evaluation.accuracy
    ]
    return table(
        ["set", "group", "labelled pictures", "accuracy"],
        rows,
        caption="Accuracy: the most similar class is the right one",
        numeric=frozenset({2, 3}),
    )


def _metrics(evaluation: Evaluation) -> Section:
    """Accuracy, then detection: few pairs of sets in full, many as an overview with the full tables folded away."""
    pairs = _pairs(evaluation)
    tables = [_detection_table(evaluation, rows) for rows in pairs.values()]
    parts: list[Child] = [_accuracy_table(evaluation)]
    if len(pairs) <= MOST_FULL_TABLES:
        parts += tables
    else:
        parts += [_overview_table(evaluation, closed) for closed in _whole_groups(evaluation)]
        parts.append(tag("details", tag("summary", "All metrics, for every pair of sets"), tables))
    parts.append(tag("ul", [tag("li", note) for note in _notes(evaluation)], class_="notes"))
    return Section("metrics", "Metrics", join(parts))


def _pairs(evaluation: Evaluation) -> dict[tuple[str, str], list[DetectionRow]]:
    """The rows of every pair of closed and open sets, one per score."""
    pairs: dict[tuple[str, str], list[DetectionRow]] = {}
    for row in evaluation.detection:
        pairs.setdefault((row.closed, row.open), []).append(row)
    return pairs


def _whole_groups(evaluation: Evaluation) -> list[str]:
    """The names that stand for all ID sets and for all shifted sets."""
    return [names[-1] for group in (Group.ID, Group.SHIFTED) if (names := pools(evaluation.sets, group))]


def _notes(evaluation: Evaluation) -> list[str]:
    rate = percent(evaluation.keep, 0)
    names = list(evaluation.detection[0].metrics)
    fpr, fpr_ood = metric_name(names[3]), metric_name(names[4])
    notes = [
        "Small figures are 95\u00a0% intervals: bootstrap for detection, Wilson for accuracy. They tell the doubt that "
        "comes from the number of pictures, and from nothing else. A dash means that all resamples agree: the sets are "
        "too small or too easy to tell more.",
        "AUROC: shown one closed and one open picture, how often the score ranks them rightly; 50\u00a0% is chance.",
        f"{fpr}: share of open pictures kept when {rate} of the closed ones are kept. {fpr_ood}: share of closed "
        f"pictures rejected when {rate} of the open ones are rejected. Papers give either number as “{fpr}”.",
    ]
    if len(evaluation.scores) > 1:
        notes.append(
            "Bold is the best of its column. To choose a score by this table and then quote its figure from this table "
            "is optimistic: confirm the choice on other pictures."
        )
    return notes


def _overview_table(evaluation: Evaluation, closed: str) -> Markup:
    """AUROC and FPR of one closed set against every open set, all scores."""
    rows = [row for row in evaluation.detection if row.closed == closed]
    names = [list(rows[0].metrics)[i] for i in (0, 3)]
    opens = list(dict.fromkeys(row.open for row in rows))
    found = {(row.score, row.open): row.metrics for row in rows}
    columns: list[Child] = ["score"]
    best: dict[tuple[str, str], float] = {}
    for name in opens:
        for metric in names:
            columns.append(join(name, tag("br"), _titled(metric)))
            best[name, metric] = _best(metric, [row for row in rows if row.open == name])
    cells: list[list[Child]] = []
    for spec in evaluation.scores:
        line: list[Child] = [spec]
        for (name, metric), value in best.items():
            measured = found[spec, name][metric]
            line.append(estimate(measured, best=len(evaluation.scores) > 1 and measured.value == value))
        cells.append(line)
    first = rows[0]
    return table(
        columns,
        cells,
        caption=f"{closed} ({first.closed_group.value}, {first.closed_images:,}) against each open set",
        numeric=frozenset(range(1, len(columns))),
        highlighted=_chosen(evaluation, list(evaluation.scores)),
    )


def _best(metric: str, rows: list[DetectionRow]) -> float:
    return (min if smaller_is_better(metric) else max)(row.metrics[metric].value for row in rows)


def _titled(metric: str) -> str:
    return f"{metric_name(metric)} {'↓' if smaller_is_better(metric) else '↑'}"


def _chosen(evaluation: Evaluation, specs: list[str]) -> frozenset[int]:
    """The line of the primary score, where there are others."""
    return frozenset({specs.index(evaluation.primary)} if len(specs) > 1 else ())


def _detection_table(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    names = list(rows[0].metrics)
    best = {name: _best(name, rows) for name in names}
    several = len(rows) > 1
    cells: list[list[Child]] = [
        [row.score, *(estimate(row.metrics[n], best=several and row.metrics[n].value == best[n]) for n in names)]
        for row in rows
    ]
    first = rows[0]
    closed = f"{first.closed} ({first.closed_group.value}, {first.closed_images:,})"
    return table(
        ["score", *map(_titled, names)],
        cells,
        caption=f"{closed} against {first.open} (open, {first.open_images:,})",
        numeric=frozenset(range(1, len(names) + 1)),
        highlighted=_chosen(evaluation, [row.score for row in rows]),
    )


def _roc_charts(evaluation: Evaluation) -> list[Markup]:
    pairs = _pairs(evaluation)
    if len(pairs) > MOST_ROC_CHARTS:
        # Of many sets, only what stands for a whole group is drawn; the others are in the tables.
        pairs = {key: rows for key, rows in pairs.items() if key[0] in _whole_groups(evaluation)}
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
    first = rows[0]
    chart = curve_chart(
        curves,
        title=f"ROC curves of {first.closed} against {first.open}",
        description="; ".join(f"{row.score}: AUROC {percent(row.metrics['auroc'].value)}" for row in ranking),
        x_label=f"share of {first.open} kept",
        y_label=f"share of {first.closed} kept",
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
    caption = join(f"{first.closed} against {first.open}", tag("span", "AUROC beside each name", class_="sub"))
    return figure(join(chart, tag("ul", legend, class_="legend"), more), caption)
