"""tune, features and bench survive a kill or a failing disk; `python -m tests.faults` tries every operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy import Model
from tests.faults import runs

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs fork and /proc")
SOME = ("killed before", "ENOSPC")


def sampled(every: int, campaign: int) -> pytest.MarkDecorator:
    """Disturbed is one of so many operations of a kind, and one of fewer in a campaign."""
    return pytest.mark.parametrize("every", [every, pytest.param(campaign, marks=pytest.mark.campaign)])


@sampled(40, 9)
def test_tune(every: int, tiny_clip: Model, coloured: Path, tmp_path: Path) -> None:
    assert runs.tuned(tiny_clip, coloured, tmp_path, kinds=SOME, every=every)["killed before"] >= 90 / every


@sampled(25, 5)
def test_features(every: int, coloured: Path, tmp_path: Path) -> None:
    assert runs.stored(coloured, tmp_path, every=every)["killed before"] >= 100 / every


@sampled(120, 31)
def test_bench(every: int, tiny_clip: Model, tmp_path: Path) -> None:
    """By default without a full disk, of which tests/benchmarks/test_runner.py has two."""
    kinds = SOME if every < 120 else SOME[:1]
    assert runs.benchmarked(tiny_clip, tmp_path, kinds=kinds, every=every)["killed before"] >= 180 / every
