"""Nothing is lost when a process is killed, or the disk fails it, at any of its file operations."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltaenergy import Detector
from tests.faults import kills
from tests.faults.harness import FAILURES, KILLS, Fault, Outcome, campaign, fail
from tests.faults.subjects import unit_features

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs fork and /proc")


@pytest.fixture
def features(detectors: dict[str, Detector]) -> np.ndarray:
    return unit_features(5, detectors["react"].classifier.model.feature_dim, seed=7)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.campaign), 6], ids=["every operation", "some"])
def every(request: pytest.FixtureRequest) -> int:
    """Disturbed is one of so many operations of a kind."""
    return int(request.param)


def check_tried(tried: Counter[str], least: int, every: int) -> None:
    """Every kind of fault was tried, at about as many operations as the action is known to have."""
    assert {*tried} == {*KILLS, *FAILURES}
    assert all(tried[kind] >= least / every for kind in (KILLS[0], *FAILURES)), tried
    assert tried["torn"] >= 3 / every


def test_a_detector_is_saved(detectors: dict[str, Detector], features: Any, tmp_path: Path, every: int) -> None:
    check_tried(kills.detector_saved(detectors["react"], features, tmp_path, every=every), 20, every)


def test_a_detector_is_overwritten(detectors: dict[str, Detector], features: Any, tmp_path: Path, every: int) -> None:
    check_tried(
        kills.detector_overwritten(detectors["react"], detectors["coop"], features, tmp_path, every=every), 20, every
    )


def test_a_classifier_is_overwritten(detectors: dict[str, Detector], features: Any, tmp_path: Path, every: int) -> None:
    old, new = detectors["react"].classifier, detectors["coop"].classifier
    check_tried(kills.classifier_overwritten(old, new, features, tmp_path, every=every), 20, every)


def test_checkpoints(tmp_path: Path, every: int) -> None:
    check_tried(kills.checkpoints(tmp_path, every=every), 50, every)


def test_benchmark_results(tmp_path: Path, every: int) -> None:
    check_tried(kills.benchmark_results(tmp_path, every=every), 30, every)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_a_table_of_scores(ending: str, tmp_path: Path, every: int) -> None:
    tried = kills.table_of_scores(ending, tmp_path, every=every)
    assert {*tried} == {*KILLS, *FAILURES} and tried["killed before"] >= 6 / every


def test_the_harness_finds_a_save_that_is_not_atomic(tmp_path: Path) -> None:
    """The check of the checks: a plain write is torn, and that is noticed."""

    def prepare(folder: Path) -> None:
        (folder / "data").write_bytes(b"old!")

    def action(folder: Path) -> None:
        handle = os.open(folder / "data", os.O_WRONLY | os.O_TRUNC)
        os.write(handle, b"new!")
        os.close(handle)

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        assert (folder / "data").read_bytes() in (b"old!", b"new!"), fault

    with pytest.raises(AssertionError, match=r"at=0.*killed after"):
        campaign(prepare, action, check, tmp_path, kinds=KILLS)


def test_the_harness_sees_every_operation(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"")

    def action() -> None:
        with (tmp_path / "made").open("wb") as file:
            file.write(b"x")
            os.fsync(file.fileno())
        (tmp_path / "made").replace(tmp_path / "moved")
        (tmp_path / "there").unlink()
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder").rmdir()
        (tmp_path / "moved").read_bytes()

    outcome = fail(action, tmp_path)
    assert outcome.operations == [
        "open made", "fsync made", "replace made", "unlink there", "mkdir folder", "rmdir folder",
    ]  # fmt: skip
