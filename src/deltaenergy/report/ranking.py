"""With several scores: which is best, by how much, and whether that is more than chance, in one sentence."""

from __future__ import annotations

from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.report.html import Child, tag
from deltaenergy.report.words import interval, percent, points
from deltaenergy.stats.metrics import paired_differences


def ranked_scores(evaluation: Evaluation) -> list[DetectionRow]:
    """The rows of all ID against all open images, the best AUROC first."""
    closed, opened = pools(evaluation.sets, Group.ID), pools(evaluation.sets, Group.OPEN)
    rows = [
        row for row in evaluation.detection if closed and opened and (row.closed, row.open) == (closed[-1], opened[-1])
    ]
    return sorted(rows, key=lambda row: -row.metrics["auroc"].value)


def order_of_scores(evaluation: Evaluation) -> list[str]:
    """The scores, best first; in their own order where nothing ranks them."""
    ranked = [row.score for row in ranked_scores(evaluation)]
    return [*ranked, *(spec for spec in evaluation.scores if spec not in ranked)]


def best_score(evaluation: Evaluation) -> Child:
    """`best_in_words` for a page."""
    found = best_in_words(evaluation)
    if found is None:
        return None
    # Lines may break between the two.
    of_all, name = found[0].split(": ", 1)
    return [tag("strong", of_all, ":"), " ", tag("strong", name), found[1]]


def best_in_words(evaluation: Evaluation) -> tuple[str, str] | None:
    """The best score, and its interval, the next, and what the paired interval of their difference says."""
    rows = ranked_scores(evaluation)
    if len(rows) < 2:
        return None
    best, next_ = rows[:2]
    area = best.metrics["auroc"]
    resamples = int(evaluation.provenance.get("resamples") or 1000)
    change = paired_differences(evaluation.pair(next_), evaluation.pair(best), resamples=resamples)["auroc"]
    lead = f"{points(change.value)} ({points(change.low)} to {points(change.high)})"
    if change.value == 0:
        verdict = f"The next, {next_.score}, does as well on these pictures."
    elif change.low > 0:
        verdict = f"Its lead over the next, {next_.score}, is {lead}: more than chance would give."
    else:
        verdict = f"Its lead over the next, {next_.score}, is {lead}: these pictures cannot tell the two apart."
    within = f" ({interval(area)})" if area.high > area.low else ""
    return (
        f"Best of {len(rows)} scores: {best.score}",
        f", which ranks a known above an open picture in {percent(area.value)}{within} of all cases. {verdict}",
    )
