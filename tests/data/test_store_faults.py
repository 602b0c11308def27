"""A store whose making is killed, or meets a full disk, at each of its file operations: nothing lost, nothing wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.campaigns import store_faults


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", ["nothing", "some", "damaged"])
def test_every_fault_at_every_operation(before: str, tmp_path: Path) -> None:
    tried = store_faults(tmp_path, before)
    assert set(tried) == {"killed before", "killed after", "torn", "ENOSPC", "EACCES"}
    assert tried.total() > 50, tried
