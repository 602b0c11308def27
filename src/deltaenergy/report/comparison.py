"""The report of several detectors side by side: which is better, at what, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from deltaenergy.evaluation.classification import Classification, classification
from deltaenergy.evaluation.compare import Comparison, Difference
from deltaenergy.evaluation.results import Group
from deltaenergy.evaluation.summary import GROUP_WORDS, Column, changes, headline, is_better, measured
from deltaenergy.report.charts import Curve, roc_panel
from deltaenergy.report.classification import quality_charts
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import (
    Section,
    folded,
    provenance_section,
    render_page,
    score_table,
    table,
    unreadable_note,
)
from deltaenergy.report.words import change_in_points, count, estimate, join_names, metric_name, points


def comparison_page(comparison: Comparison, title: str | None = None) -> str:
    evaluations = comparison.evaluations
    sections = [_summary(comparison), _table_section(comparison)]
    if any(one.detection for one in evaluations.values()):
        sections.append(Section("roc", "ROC curves", tag("div", _roc(comparison), class_="panels top")))
    named = {name: found[0] for name, one in evaluations.items() if (found := classification(one))}
    if named:
        body = join(quality_charts(named, widest=True), _class_table(named))
        sections.append(Section("classes", "Classes", body))
    for position, (name, one) in enumerate(evaluations.items()):
        scores = score_table(one.scores, one.thresholds, one.calibrations)
        body = folded("Show", provenance_section(one.provenance, scores).body)
        sections.append(Section(f"made-{position}", f"How it was made: {isolated(name)}", body))
    date = str(evaluations[comparison.baseline].provenance["date"])[:10]
    return render_page(title or "Detectors compared", f"{count(len(evaluations), 'detector')} · {date}", sections)


def _summary(comparison: Comparison) -> Section:
    lines = []
    for name in list(comparison.evaluations)[1:]:
        told = measured(comparison.evaluations[name])
        clear = {column: row for column, row in changes(comparison, name).items() if row.is_clear and column in told}
        gains = [_said(column, row) for column, row in clear.items() if is_better(row)]
        losses = [_said(column, row) for column, row in clear.items() if not is_better(row)]
        parts: list[Child] = [tag("strong", name), f" against {isolated(comparison.baseline)}: "]
        if gains:
            parts.append(f"better in {join_names(gains, most=8)}")
        if losses:
            parts.append(f"{', but worse' if gains else 'worse'} in {join_names(losses, most=8)}")
        parts.append("." if clear else "no difference that these images can show.")
        lines.append(tag("p", parts, class_="answer"))
    first = comparison.evaluations[comparison.baseline]
    asked = [f"{sum(map(len, sets)):,} {GROUP_WORDS[group]}" for group in Group if (sets := first.in_group(group))]
    note = (
        f"All were tested on the same images: {join_names(asked)}. Differences are in percentage points with 95% "
        "confidence intervals of a paired bootstrap; only those whose interval excludes zero are listed here."
    )
    body = join(lines, tag("p", note, class_="small"), unreadable_note(comparison.unreadable))
    return Section("summary", "Summary", body)


def _said(column: Column, row: Difference) -> str:
    metric, group = column
    return f"{metric_name(metric)} on {GROUP_WORDS[group]} by {change_in_points(row.change)}"


def _table_section(comparison: Comparison) -> Section:
    figures = {name: measured(one) for name, one in comparison.evaluations.items()}
    columns = list(dict.fromkeys(column for found in figures.values() for column in found))
    rows: list[list[Child]] = []
    for name, found in figures.items():
        rows.append([name, *(estimate(found[column]) if column in found else "–" for column in columns)])
    changed: list[list[Child]] = []
    for name in list(figures)[1:]:
        own = changes(comparison, name)
        changed.append([name, *(_change(own[column]) if column in own else "–" for column in columns)])
    parts = [
        _wide("Side by side", columns, rows),
        _wide(f"Difference to {isolated(comparison.baseline)}, percentage points", columns, changed),
    ]
    note = "Bold differences are more than chance: their interval excludes zero."
    return Section("metrics", "Numbers", join(parts, tag("p", note, class_="small")))


def _wide(caption: str, columns: list[Column], rows: list[list[Child]]) -> Markup:
    """A table with grouped columns: accuracy, AUROC, … …"""
    groups = [(metric_name(metric), len(list(some))) for metric, some in groupby(columns, key=lambda column: column[0])]
    names: list[Child] = ["detector", *(GROUP_WORDS[group] for _, group in columns)]
    numeric = frozenset(range(1, len(names)))
    return table(names, rows, caption=caption, numeric=numeric, groups=[("", 1), *groups])


def _change(row: Difference) -> Markup:
    return join(
        tag("span", points(row.change.value), class_="clear" if row.is_clear else None),
        tag("span", f"{points(row.change.low)} to {points(row.change.high)}", class_="interval"),
    )


def _roc(comparison: Comparison) -> list[Markup]:
    panels = []
    for group in (Group.ID, Group.SHIFTED):
        curves: list[Curve] = []
        areas = {}
        for name, one in comparison.evaluations.items():
            if (row := headline(one, group)) is not None:
                curves.append(Curve(name, *one.ranked(row).roc_curve(), index=len(curves)))
                areas[name] = row.metrics["auroc"].value
        if curves:
            closed, opened = GROUP_WORDS[group], GROUP_WORDS[Group.OPEN]
            panels.append(
                roc_panel(curves, closed, opened, heading=f"{closed} against {opened}".capitalize(), areas=areas)
            )
    return panels


def _class_table(named: Mapping[str, Classification]) -> Markup | None:
    """Accuracy of each class, one column per detector, largest differences first."""
    found = {name: {row.name: row for row in one.classes} for name, one in named.items()}
    classes = list(dict.fromkeys(name for rows in found.values() for name in rows))
    if not classes:
        return None

    def spread(name: str) -> float:
        values = [rows[name].accuracy.value for rows in found.values() if name in rows]
        return min(values) - max(values)

    rows: list[list[Child]] = [
        [name, *(estimate(rows[name].accuracy) if name in rows else "–" for rows in found.values())]
        for name in sorted(classes, key=spread)
    ]
    caption = "Accuracy of each class, known images; largest differences first"
    whole = table(["class", *found], rows, caption=caption, numeric=frozenset(range(1, len(found) + 1)))
    return whole if len(rows) <= 20 else folded(f"All {len(rows)} classes", whole)
