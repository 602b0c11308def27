"""Verdicts that no detector made, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deltaenergy.detector.verdicts import Verdicts


def made(
    paths: Sequence[str],
    labels: Sequence[str],
    scores: Sequence[float],
    is_ood: Sequence[bool] | None,
    p_values: Sequence[float] | None = None,
) -> Verdicts:
    classes = list(dict.fromkeys(labels))
    count = len(paths)
    return Verdicts(
        list(paths),
        classes,
        np.array([[classes.index(label)] for label in labels], np.int64).reshape(-1, 1),
        np.full((count, 1), 0.5),
        "energy",
        np.array(scores, np.float64),
        np.full(count, 0.125) if p_values is None else np.array(p_values, np.float64),
        None if is_ood is None else np.array(is_ood, bool),
    )
