"""An evaluation in a few numbers: one row per group, the best score, and detectors side by side.

The terminal and the report both use it, so they agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaenergy.evaluation.compare import Comparison, Difference
from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.stats.metrics import Estimate, paired_differences, proportion_estimate

# Names of the groups in comparisons of detectors.
GROUP_WORDS = {Group.ID: "known images", Group.SHIFTED: "shifted images", Group.OPEN: "unknown images"}
# The share of a group's images that a detector keeps, in addition to the metrics of `Evaluation`.
KEPT = "kept"
# A number of a detector: `accuracy`, `kept` or a detection metric, and the images that it is about.
Column = tuple[str, Group]


@dataclass(frozen=True)
class BestScore:
    """The score with the highest AUROC, the next score, and its paired lead."""

    best: DetectionRow
    second: DetectionRow
    lead: Estimate
    scores: int


def whole_group(evaluation: Evaluation, group: Group) -> str | None:
    """The name for all images of a group; None if it has none."""
    return next(reversed(pools(evaluation.sets, group)), None)


def headline(evaluation: Evaluation, group: Group) -> DetectionRow | None:
    """The row of a group: the primary score, all its sets against all open sets."""
    return next((row for row in _rows_of(evaluation, group) if row.score == evaluation.primary), None)


def ranked_scores(evaluation: Evaluation) -> list[DetectionRow]:
    """The rows of all ID against all open images, the best AUROC first."""
    return sorted(_rows_of(evaluation, Group.ID), key=lambda row: -row.metrics["auroc"].value)


def order_of_scores(evaluation: Evaluation) -> list[str]:
    """The scores, best first; in the given order if nothing ranks them."""
    ranked = [row.score for row in ranked_scores(evaluation)]
    return [*ranked, *(spec for spec in evaluation.scores if spec not in ranked)]


def best_score(evaluation: Evaluation) -> BestScore | None:
    """The best of several scores, with the paired bootstrap interval of its lead; None with one score."""
    rows = ranked_scores(evaluation)
    if len(rows) < 2:
        return None
    best, second = rows[:2]
    resamples = int(evaluation.provenance.get("resamples") or 1000)
    lead = paired_differences(evaluation.pair(second), evaluation.pair(best), resamples=resamples)["auroc"]
    return BestScore(best, second, lead, len(rows))


def measured(evaluation: Evaluation) -> dict[Column, Estimate]:
    """The numbers of one detector: accuracy, AUROC, FPR, and the share kept at its threshold."""
    numbers: dict[Column, Estimate] = {}
    for row in evaluation.accuracy:  # the last row of a group is its pool
        numbers["accuracy", row.group] = row.accuracy
    rows = {group: best for group in (Group.ID, Group.SHIFTED) if (best := headline(evaluation, group)) is not None}
    for metric in next(iter(rows.values())).metrics if rows else ():
        if metric == "auroc" or (metric.startswith("fpr") and not metric.endswith("_ood")):
            numbers |= {(metric, group): of_group.metrics[metric] for group, of_group in rows.items()}
    for group in Group:
        sets = evaluation.in_group(group)
        if total := sum(map(len, sets)):
            kept = sum(int((~evaluation.is_ood(image_set)).sum()) for image_set in sets)
            numbers[KEPT, group] = proportion_estimate(kept, total)
    return numbers


def changes(comparison: Comparison, name: str) -> dict[Column, Difference]:
    """The differences of one detector to the baseline, by the columns of `measured`."""
    group_of = {whole_group(comparison.evaluations[name], group): group for group in Group}
    rows = (row for row in comparison.differences if row.name == name)
    return {(row.metric, group_of[row.closed or row.open]): row for row in rows}


def smaller_is_better(metric: str) -> bool:
    """Whether a metric counts mistakes."""
    return metric.startswith("fpr")


def is_better(row: Difference) -> bool:
    """Whether a difference is an improvement: open images should not be kept."""
    less = smaller_is_better(row.metric) or (row.metric == KEPT and not row.closed)
    return (row.change.value < 0) if less else (row.change.value > 0)


def _rows_of(evaluation: Evaluation, group: Group) -> list[DetectionRow]:
    """All scores on all images of a closed group against all open images."""
    names = whole_group(evaluation, group), whole_group(evaluation, Group.OPEN)
    return [row for row in evaluation.detection if (row.closed, row.open) == names]
