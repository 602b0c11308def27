"""One method on one case: an evaluation -> rows of metrics, and curves for plots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.stats.metrics import RankedScores

ROC_POINTS = 200
QUANTILES = 200


def cell_rows(evaluation: Evaluation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of accuracy per closed set and of detection per pair of sets, and the pairs' curves."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for one in evaluation.sets:
        if one.group is Group.OPEN:
            continue
        base = {"closed": one.name, "kind": one.group.name.lower()}
        for found in evaluation.accuracy:
            if (found.set, found.group) == (one.name, one.group):
                accuracy = {"open": None, "metric": "accuracy", "value": found.accuracy.value}
                rows.append({**base, **accuracy, "n_closed": found.images, "n_open": 0})
        for pair in evaluation.detection:
            if (pair.closed, pair.closed_group) != (one.name, one.group):
                continue
            counts = {"n_closed": pair.closed_images, "n_open": pair.open_images}
            for name, estimate in pair.metrics.items():
                rows.append({**base, "open": pair.open, "metric": name, "value": estimate.value, **counts})
            known, unknown = evaluation.pair(pair)
            sketches = {"closed_scores": sketch(known), "open_scores": sketch(unknown)}
            curves.append({**base, "open": pair.open, **_roc(evaluation.ranked(pair)), **sketches})
    return rows, curves


def _roc(ranked: RankedScores) -> dict[str, Any]:
    curve = ranked.roc_curve()
    chosen = np.unique(np.linspace(0, len(curve.id_kept) - 1, ROC_POINTS).round().astype(int))
    return {"ood_kept": curve.ood_kept[chosen].tolist(), "id_kept": curve.id_kept[chosen].tolist()}


def sketch(values: npt.NDArray[np.float64]) -> list[float]:
    """The distribution in at most `QUANTILES` numbers: all of them if they are so few, else evenly spaced quantiles."""
    if len(values) <= QUANTILES:
        return [float(value) for value in np.sort(values)]
    return [float(value) for value in np.quantile(values, np.linspace(0, 1, QUANTILES))]
