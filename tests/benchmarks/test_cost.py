"""The cost benchmark: every quantity is there and adds up; peak memory sees a large array."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from deltaenergy.benchmarks.cost import MEASURED_SECONDS, fastest, peak_memory
from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from tests.benchmarks.small import small_spec

if TYPE_CHECKING:
    from deltaenergy import Model


def test_scores_and_tuners_are_measured_where_they_belong(tiny_clip: Model, tmp_path: Path) -> None:
    scores_case = "cases:\n  - {name: scores, dataset: drawn, closed: {flat: {split: test, domains: [flat]}}}\n"
    spec = small_spec(("cases:\n", "measures: cost\n" + scores_case))
    methods = ["msp", "react", "gl-mcm", "coop"]
    summary = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=methods, seeds=[1], limit=16)
    assert summary.skips == []
    found = {
        (cell.identity["case"], cell.identity["method"]): {row["metric"]: row["value"] for row in cell.rows}
        for cell in Results(tmp_path).cells()
    }
    assert set(found) == {("scores", "msp"), ("scores", "react"), ("scores", "gl-mcm"), ("drawn", "coop/mcm")}
    msp, patches = found["scores", "msp"], found["scores", "gl-mcm"]
    assert msp["seconds"] == pytest.approx(msp["encoding_seconds"] + msp["scoring_seconds"])
    assert msp["images_per_second"] == pytest.approx(16 / msp["seconds"])
    assert patches["seconds"] == patches["scoring_seconds"] > msp["scoring_seconds"]
    assert found["drawn", "coop/mcm"]["seconds"] > 0
    again = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=methods, seeds=[1], limit=16)
    assert (again.computed, again.found) == (0, 4)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_peak_memory_is_that_of_the_block() -> None:
    cpu = torch.device("cpu")
    with peak_memory(cpu) as before:
        pass
    with peak_memory(cpu) as during:
        # Memory of its own: an array may get some that the process already has.
        np.frombuffer(mmap.mmap(-1, 64 * 2**20), np.uint8)[:] = 1
    with peak_memory(cpu) as after:
        pass
    assert during["peak_mb"] - before["peak_mb"] > 50
    assert during["peak_mb"] - after["peak_mb"] > 50


def test_the_fastest_repetition_counts() -> None:
    now = 0.0

    def work() -> None:
        nonlocal now
        now += next(seconds)

    seconds = iter([MEASURED_SECONDS / 2, MEASURED_SECONDS / 30, MEASURED_SECONDS / 2])
    assert fastest(work, clock=lambda: now) == pytest.approx(MEASURED_SECONDS / 30)
