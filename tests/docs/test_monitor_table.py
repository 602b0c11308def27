"""The simulation of docs/tables/monitor.py is that of the monitor itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from tests.monitor.made import make_detector

TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TABLES))
        import monitor

        yield monitor


@pytest.mark.parametrize(("size", "share"), [(100, 0.2), (500, 0.1), (500, 0.0)])
def test_a_run_is_that_of_the_monitor(script: Any, size: int, share: float) -> None:
    known, stream = script.draw(size, share, 500, seed=1)
    monitor = de.Monitor(make_detector(known), seed=1)
    monitor.observe(["x"] * 500, ["dog"] * 500, stream)
    raised = [(number, test) for test, number in monitor.alarms.items() if number is not None]
    assert script.first_alarm(known, stream, 1) == (min(raised) if raised else (None, ""))
    assert bool(raised) == (share > 0)
