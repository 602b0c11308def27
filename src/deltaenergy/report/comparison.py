"""The report of several detectors side by side: which is better, at what, and whether that is more than chance."""

from __future__ import annotations

from deltaenergy.detector.verdicts import KNOWN
from deltaenergy.evaluation.classification import classification
from deltaenergy.evaluation.compare import Comparison, Difference
from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.report.charts import Curve, curve_chart, legend_key
from deltaenergy.report.charts import percent as percent_tick
from deltaenergy.report.classification import quality_charts
from deltaenergy.report.evaluation import headline, kept_estimate
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import (
    Section,
    figure,
    provenance_section,
    render_page,
    score_table,
    table,
    unreadable_note,
)
from deltaenergy.report.words import count, estimate, listed, metric_name, percent, points, smaller_is_better
from deltaenergy.stats.metrics import Estimate

# What is told of every detector: the column, and how it is called.
_GROUP_WORDS = {Group.ID: "known pictures", Group.SHIFTED: "another style", Group.OPEN: "open pictures"}


def comparison_page(comparison: Comparison, title: str | None = None) -> str:
    """The whole report as one HTML document."""
    evaluations = comparison.evaluations
    made = evaluations[comparison.baseline].provenance
    sections = [_summary(comparison), _table_section(comparison)]
    if any(one.detection for one in evaluations.values()):
        sections.append(Section("roc", "ROC curves", tag("div", _roc(comparison), class_="panels top")))
    named = {name: found[0] for name, one in evaluations.items() if (found := classification(one))}
    if named:
        sections.append(
            Section("classes", "Classes", join(quality_charts(named, widest=True), _class_table(comparison)))
        )
    for position, (name, one) in enumerate(evaluations.items()):
        scores = score_table(one.scores, one.thresholds, one.given_thresholds)
        made_of = provenance_section(one.provenance, scores)
        heading = f"How it was made: {isolated(name)}"
        sections.append(Section(f"made-{position}", heading, tag("details", tag("summary", "Show"), made_of.body)))
    return render_page(
        title or "Detectors compared",
        " · ".join([count(len(evaluations), "detector"), str(made["date"])[:10]]),
        sections,
        footer=f"Made by deltaenergy {made['versions']['deltaenergy']}. This file is complete in itself: it loads "
        "nothing from the network.",
    )


def measured(one: Evaluation) -> dict[str, Estimate]:
    """The figures of one detector by column: accuracy, detection, and what it keeps at its own threshold."""
    found: dict[str, Estimate] = {}
    for row in one.accuracy:  # the last row of a group is its pool
        found[f"accuracy, {_GROUP_WORDS[row.group]}"] = row.accuracy
    rows = {group: best for group in (Group.ID, Group.SHIFTED) if (best := headline(one, group)) is not None}
    names = list(next(iter(rows.values())).metrics) if rows else []
    for metric in names:
        if metric == "auroc" or (metric.startswith("fpr") and not metric.endswith("_ood")):
            for group, row_of in rows.items():
                found[f"{metric_name(metric)}, {_GROUP_WORDS[group]}"] = row_of.metrics[metric]
    for group in Group:
        if (kept := kept_estimate(one, group)) is not None:
            found[f"judged {KNOWN}, {_GROUP_WORDS[group]}"] = kept
    return found


def changes(comparison: Comparison, name: str) -> dict[str, Difference]:
    """The differences of one detector to the baseline, by the columns of `measured`."""
    group_of = {
        pool: group
        for group in Group
        for pool in [*(one.name for one in comparison.evaluations[name].in_group(group)), f"all {group.value} sets"]
    }
    found: dict[str, Difference] = {}
    for row in comparison.differences:
        if row.name == name:
            what = {"kept": f"judged {KNOWN}", "accuracy": "accuracy"}.get(row.metric, metric_name(row.metric))
            found[f"{what}, {_GROUP_WORDS[group_of[row.closed or row.open]]}"] = row
    return found


def better(row: Difference) -> bool:
    """Whether a difference is for the better."""
    less = smaller_is_better(row.metric) or (row.metric == "kept" and not row.closed)
    return (row.change.value < 0) if less else (row.change.value > 0)


def _summary(comparison: Comparison) -> Section:
    lines = []
    for name in list(comparison.evaluations)[1:]:
        told = measured(comparison.evaluations[name])
        clear = {column: row for column, row in changes(comparison, name).items() if row.is_clear and column in told}
        gains = [_said(column, row) for column, row in clear.items() if better(row)]
        losses = [_said(column, row) for column, row in clear.items() if not better(row)]
        parts: list[Child] = [tag("strong", name), f" against {isolated(comparison.baseline)}: "]
        if gains:
            parts.append(f"better in {listed(gains, most=8)}")
        if losses:
            parts.append(f"{', but worse' if gains else 'worse'} in {listed(losses, most=8)}")
        parts.append("." if clear else "no difference that these pictures can show.")
        lines.append(tag("p", parts, class_="answer"))
    first = comparison.evaluations[comparison.baseline]
    asked = [f"{sum(map(len, sets)):,} {_GROUP_WORDS[group]}" for group in Group if (sets := first.in_group(group))]
    note = (
        f"All saw the same pictures: {listed(asked)}. Differences are in percentage points with 95\u00a0% intervals "
        "of a paired bootstrap; only those whose interval leaves out zero are named here."
    )
    body = join(lines, tag("p", note, class_="small"), unreadable_note(comparison.unreadable))
    return Section("summary", "Summary", body)


def _said(column: str, row: Difference) -> str:
    what, of = column.split(", ", 1)
    return f"{what} on {of} by {points(row.change.value)} ({points(row.change.low)} to {points(row.change.high)})"


def _table_section(comparison: Comparison) -> Section:
    figures = {name: measured(one) for name, one in comparison.evaluations.items()}
    columns = list(dict.fromkeys(column for found in figures.values() for column in found))
    rows: list[list[Child]] = []
    for name, found in figures.items():
        rows.append([name, *(estimate(found[column]) if column in found else "–" for column in columns)])
    numeric = frozenset(range(1, len(columns) + 1))
    parts = [_wide("Side by side", columns, rows, numeric)]
    changed: list[list[Child]] = []
    for name in list(figures)[1:]:
        own = changes(comparison, name)
        changed.append([name, *(_change(own[column]) if column in own else "–" for column in columns)])
    parts.append(_wide(f"Difference to {isolated(comparison.baseline)}, percentage points", columns, changed, numeric))
    note = "Bold differences are more than chance would give: their interval leaves out zero."
    return Section("metrics", "Figures", join(parts, tag("p", note, class_="small")))


def _wide(caption: str, columns: list[str], rows: list[list[Child]], numeric: frozenset[int]) -> Markup:
    """A table whose columns stand in groups: accuracy, AUROC, …"""
    groups: list[tuple[str, int]] = []
    for column in columns:
        head = column.split(", ")[0]
        if groups and groups[-1][0] == head:
            groups[-1] = (head, groups[-1][1] + 1)
        else:
            groups.append((head, 1))
    names: list[Child] = ["detector", *(column.split(", ", 1)[1] for column in columns)]
    return table(names, rows, caption=caption, numeric=numeric, groups=[("", 1), *groups])


def _change(row: Difference) -> Markup:
    return join(
        tag("span", points(row.change.value), class_="clear" if row.is_clear else None),
        tag("span", f"{points(row.change.low)} to {points(row.change.high)}", class_="interval"),
    )


def _roc(comparison: Comparison) -> list[Markup]:
    charts = []
    for group in (Group.ID, Group.SHIFTED):
        found = {name: (one, row) for name, one in comparison.evaluations.items() if (row := headline(one, group))}
        if not found:
            continue
        curves, legend = [], []
        for i, (name, (one, row)) in enumerate(found.items()):
            x, y = one.ranked(row).roc_curve()
            curves.append(Curve(name, x, y, index=i))
            area = percent(row.metrics["auroc"].value)
            said = tag("span", name, class_="name"), tag("span", area, class_="figure")
            legend.append(tag("li", legend_key(i), *said))
        title = f"{_GROUP_WORDS[group]} against open pictures"
        chart = curve_chart(
            curves,
            title=f"ROC curves, {title}",
            description="; ".join(f"{n}: AUROC {percent(r.metrics['auroc'].value)}" for n, (_, r) in found.items()),
            x_label="share of open pictures kept",
            y_label=f"share of {_GROUP_WORDS[group]} kept",
            x_range=(0, 1),
            y_range=(0, 1),
            x_format=percent_tick,
            y_format=percent_tick,
            diagonal=True,
        )
        caption = join(title.capitalize(), tag("span", "AUROC beside each name", class_="sub"))
        charts.append(figure(join(chart, tag("ul", legend, class_="legend")), caption))
    return charts


def _class_table(comparison: Comparison) -> Markup | None:
    """Accuracy of each class, a column per detector, where the detectors differ most first."""
    found = {
        name: {row.name: row for row in parts[0].classes}
        for name, one in comparison.evaluations.items()
        if (parts := classification(one))
    }
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
    caption = "Accuracy of each class, known pictures; where the detectors differ most first"
    whole = table(["class", *found], rows, caption=caption, numeric=frozenset(range(1, len(found) + 1)))
    return whole if len(rows) <= 20 else tag("details", tag("summary", f"All {len(rows)} classes"), whole)
