"""From scored sets to tables: accuracy, detection of each closed set against each open one, what a threshold keeps."""

from __future__ import annotations

from collections.abc import Sequence

from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import (
    AccuracyRow,
    DetectionRow,
    EvaluatedSet,
    Evaluation,
    Group,
    KeptRow,
    members,
    pools,
    values_of,
)
from deltaenergy.stats.metrics import Estimate, RankedScores, proportion_estimate


def accuracy_rows(sets: Sequence[EvaluatedSet], *, pooled: bool) -> list[AccuracyRow]:
    """Of each closed set with labels, and with `pooled` of all ID and of all shifted sets together."""
    rows = []
    for group in (Group.ID, Group.SHIFTED):
        names = [one.name for one in sets if one.group is group]
        for name in dict.fromkeys([*names, *(pools(sets, group) if pooled else [])]):
            chosen = members([one for one in sets if one.group is group], name)
            labelled = sum(int(one.labelled.sum()) for one in chosen)
            if labelled:
                right = sum(int(one.correct.sum()) for one in chosen)
                rows.append(AccuracyRow(name, group, labelled, proportion_estimate(right, labelled)))
    return rows


def detection_rows(
    sets: Sequence[EvaluatedSet], scores: Sequence[str], keep: float, *, resamples: int, seed: int, pooled: bool
) -> list[DetectionRow]:
    """Each score on each closed set against each open one; intervals only if there are resamples.

    With `pooled`, sets of a group are also taken together. A pair of which one side has no image that counts is left
    out, and so are sets that were not scored.
    """
    rows = []
    opened = [one for one in sets if one.group is Group.OPEN]
    for group in (Group.ID, Group.SHIFTED):
        mine = [one for one in sets if one.group is group]
        for closed in _names(sets, group, pooled):
            for open_name in _names(sets, Group.OPEN, pooled):
                for spec in scores:
                    known, unknown = values_of(mine, closed, spec), values_of(opened, open_name, spec)
                    if not len(known) or not len(unknown):
                        continue
                    try:
                        ranked = RankedScores(known, unknown)
                    except InputError as error:
                        raise InputError(f"Score {spec!r}, {closed!r} against {open_name!r}: {error}") from error
                    metrics = (
                        ranked.estimates(keep, resamples=resamples, seed=seed)
                        if resamples
                        else {name: Estimate(value, value, value) for name, value in ranked.metrics(keep).items()}
                    )
                    rows.append(DetectionRow(spec, closed, group, open_name, ranked.n_id, ranked.n_ood, metrics))
    return rows


def kept_rows(evaluation: Evaluation) -> list[KeptRow]:
    """The share of each set that each score's threshold accepts."""
    rows = []
    for spec in evaluation.thresholds:
        for one in evaluation.sets:
            if spec in one.scored.values and len(one):
                kept = int((~evaluation.is_ood(one, spec)).sum())
                rows.append(KeptRow(spec, one.name, one.group, len(one), proportion_estimate(kept, len(one))))
    return rows


def _names(sets: Sequence[EvaluatedSet], group: Group, pooled: bool) -> list[str]:
    return pools(sets, group) if pooled else [one.name for one in sets if one.group is group]
