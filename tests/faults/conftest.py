"""The detectors that are damaged, one per kind of score and classifier."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy import Detector, Model
from tests.faults.subjects import make_detectors, train_set_for


@pytest.fixture(scope="session")
def detectors(tiny_clip: Model, coloured: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Detector]:
    """Calibrated detectors by name."""
    return make_detectors(tiny_clip, train_set_for(tiny_clip, coloured), tmp_path_factory.mktemp("words"))
