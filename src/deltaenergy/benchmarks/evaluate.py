"""One method on one case: scores of the closed and open sets -> rows of metrics, and curves for plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deltaenergy.benchmarks.protocol import Protocol
from deltaenergy.benchmarks.spec import ImageSet
from deltaenergy.metrics import RankedScores, accuracy

ROC_POINTS = 200
QUANTILES = 200


@dataclass(frozen=True)
class ScoredSet:
    """A set's scores; for closed sets also which images were classified correctly."""

    spec: ImageSet
    values: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    # False for images that the score was fitted on.
    tested: npt.NDArray[np.bool_]


def measure(
    closed: list[ScoredSet], opened: list[ScoredSet], protocol: Protocol
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of accuracy per closed set and of detection per pair of sets, and the pairs' curves."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for inside in closed:
        predicted, targets = inside.predicted[inside.tested], inside.targets[inside.tested]
        base = {"closed": inside.spec.name, "kind": inside.spec.kind}
        if not len(targets):
            continue
        rows.append(
            {**base, "open": None, "metric": "accuracy", "value": accuracy(predicted, targets)}
            | {"n_closed": len(targets), "n_open": 0}
        )
        kept = inside.values[inside.tested][protocol.counted(predicted == targets)]
        for outside in opened:
            # Superclass sets have another classifier than the open sets; croft may leave no image.
            if inside.spec.own_classes or not len(kept) or not len(outside.values):
                continue
            ranked = RankedScores(kept, outside.values)
            pair = {**base, "open": outside.spec.name}
            counts = {"n_closed": len(kept), "n_open": len(outside.values)}
            rows += [{**pair, "metric": name, "value": value} | counts for name, value in ranked.metrics().items()]
            curves.append(
                {**pair, **_roc(ranked), "closed_scores": sketch(kept), "open_scores": sketch(outside.values)}
            )
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
