"""The command line as a fixture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.cli.runner import Runner


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """Run `deltaenergy` with these arguments. Python's way of showing warnings is put back afterwards."""
    show = warnings.showwarning
    yield Runner(capsys)
    warnings.showwarning = show
