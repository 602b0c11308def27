"""A damaged or tampered detector is refused, or gives the same verdicts; never a traceback, never a wrong answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deltaenergy import Detector
from tests.faults import mutations
from tests.faults.subjects import unit_features

NAMES = ["delta-energy", "delta-energy:robust", "react", "multi-delta-energy", "neglabel", "coop", "tip-adapter-f"]


# One that learns nothing, one that learns from known images, and one whose classifier was trained.
BY_DEFAULT = {"delta-energy", "react", "tip-adapter-f"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DEFAULT else [pytest.mark.campaign]) for name in NAMES]
)
def test_every_mutation_is_refused_or_harmless(detectors: dict[str, Detector], name: str, tmp_path: Path) -> None:
    assert list(detectors) == NAMES
    features = unit_features(5, detectors[name].classifier.model.feature_dim, seed=7)
    found = mutations.campaign(detectors[name], detectors[NAMES[NAMES.index(name) - 1]], features, tmp_path)
    outcomes: Counter[str] = Counter()
    for key, count in found.items():
        outcomes[key.rsplit(": ", 1)[1]] += count
    assert outcomes["refused"] > 500
    # With a threshold of another value, say, it is a detector in its own right; but such changes are few.
    assert outcomes["other"] < 0.1 * outcomes.total()
