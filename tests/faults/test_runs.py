"""tune, features and bench survive a kill or a failing disk; `python -m tests.faults` tries every operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy import Model
from tests.faults import runs

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs fork and /proc")
SOME = ("killed before", "ENOSPC")


def test_tune(tiny_clip: Model, coloured: Path, tmp_path: Path) -> None:
    assert runs.tuned(tiny_clip, coloured, tmp_path, kinds=SOME, every=9)["killed before"] >= 10


def test_features(coloured: Path, tmp_path: Path) -> None:
    assert runs.stored(coloured, tmp_path, every=5)["killed before"] >= 20


def test_bench(tiny_clip: Model, tmp_path: Path) -> None:
    assert runs.benchmarked(tiny_clip, tmp_path, kinds=SOME, every=31)["killed before"] >= 6
