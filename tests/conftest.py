"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real pictures and CLIP features; tests that use it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DELTAENERGY_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip("set DELTAENERGY_TEST_DATA to the folder with real pictures to run this test")
    return folder
