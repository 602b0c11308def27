"""A store whose making is killed, or meets a full disk, at each of its file operations: nothing lost, nothing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.campaigns import BEFORE, store_faults


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.campaign), 9])
def test_every_fault_at_operations(every: int, before: str, tmp_path: Path) -> None:
    tried = store_faults(tmp_path, before, every=every)
    assert set(tried) == {"killed before", "killed after", "torn", "ENOSPC", "EACCES"}
    assert tried.total() > 50 / every, tried
