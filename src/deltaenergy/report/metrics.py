"""The tables of an evaluation: accuracy, and every metric of every score with its interval."""

from __future__ import annotations

from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import Section, table
from deltaenergy.report.ranking import order_of_scores
from deltaenergy.report.words import estimate, metric_name, percent, smaller_is_better


def accuracy_table(evaluation: Evaluation) -> Markup | None:
    """Accuracy of every labelled set."""
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


def _ranked(evaluation: Evaluation, rows: list[DetectionRow]) -> list[DetectionRow]:
    order = order_of_scores(evaluation)
    return sorted(rows, key=lambda row: order.index(row.score))


def metrics_section(evaluation: Evaluation) -> Section:
    """Accuracy, then detection: against one open set in full, against several as an overview, the rest folded away."""
    pairs = pairs_of(evaluation)
    whole = whole_groups(evaluation)
    several_open = len({name for _, name in pairs}) > 1
    parts: list[Child] = [accuracy_table(evaluation)]
    if several_open:
        parts += [_overview_table(evaluation, closed) for closed in whole]
        folded = list(pairs.values())
    else:
        parts += [_detection_table(evaluation, rows) for (closed, _), rows in pairs.items() if closed in whole]
        folded = [rows for (closed, _), rows in pairs.items() if closed not in whole]
    if folded:
        tables = [_detection_table(evaluation, rows) for rows in folded]
        parts.append(tag("details", tag("summary", "All metrics, for each pair of sets"), tables))
    parts.append(tag("ul", [tag("li", note) for note in _notes(evaluation)], class_="notes"))
    return Section("metrics", "Metrics", join(parts))


def pairs_of(evaluation: Evaluation) -> dict[tuple[str, str], list[DetectionRow]]:
    """The rows of every pair of closed and open sets, one per score."""
    pairs: dict[tuple[str, str], list[DetectionRow]] = {}
    for row in evaluation.detection:
        pairs.setdefault((row.closed, row.open), []).append(row)
    return pairs


def whole_groups(evaluation: Evaluation) -> list[str]:
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
            "Scores are ranked by AUROC. Bold is the best of its column. To choose a score by this table and then "
            "quote its figure from this table is optimistic: confirm the choice on other pictures."
        )
    return notes


def _overview_table(evaluation: Evaluation, closed: str) -> Markup:
    """AUROC and FPR of one closed set against every open set, all scores."""
    rows = [row for row in evaluation.detection if row.closed == closed]
    names = [list(rows[0].metrics)[i] for i in (0, 3)]
    opens = list(dict.fromkeys(row.open for row in rows))
    found = {(row.score, row.open): row.metrics for row in rows}
    columns: list[Child] = ["score"]
    specs = order_of_scores(evaluation)
    best: dict[tuple[str, str], float] = {}
    for name in opens:
        for metric in names:
            columns.append(_titled(metric))
            best[name, metric] = _best(metric, [row for row in rows if row.open == name])
    cells: list[list[Child]] = []
    for spec in specs:
        line: list[Child] = [spec]
        for (name, metric), value in best.items():
            measured = found[spec, name][metric]
            line.append(estimate(measured, best=len(evaluation.scores) > 1 and measured.value == value))
        cells.append(line)
    first = rows[0]
    return table(
        columns,
        cells,
        caption=f"{isolated(closed)} ({first.closed_group.value}, {first.closed_images:,}) against each open set",
        numeric=frozenset(range(1, len(columns))),
        highlighted=_chosen(evaluation, specs),
        groups=[("", 1), *((name, len(names)) for name in opens)],
    )


def _best(metric: str, rows: list[DetectionRow]) -> float:
    return (min if smaller_is_better(metric) else max)(row.metrics[metric].value for row in rows)


def _titled(metric: str) -> str:
    return f"{metric_name(metric)} {'↓' if smaller_is_better(metric) else '↑'}"


def _chosen(evaluation: Evaluation, specs: list[str]) -> frozenset[int]:
    """The line of the primary score, where there are others."""
    return frozenset({specs.index(evaluation.primary)} if len(specs) > 1 else ())


def _detection_table(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    rows = _ranked(evaluation, rows)
    names = list(rows[0].metrics)
    best = {name: _best(name, rows) for name in names}
    several = len(rows) > 1
    cells: list[list[Child]] = [
        [row.score, *(estimate(row.metrics[n], best=several and row.metrics[n].value == best[n]) for n in names)]
        for row in rows
    ]
    first = rows[0]
    closed = f"{isolated(first.closed)} ({first.closed_group.value}, {first.closed_images:,})"
    return table(
        ["score", *map(_titled, names)],
        cells,
        caption=f"{closed} against {isolated(first.open)} (open, {first.open_images:,})",
        numeric=frozenset(range(1, len(names) + 1)),
        highlighted=_chosen(evaluation, [row.score for row in rows]),
    )
