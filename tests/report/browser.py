"""A headless browser for tests, where there is one: Playwright for Python and a chromium of the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def browser() -> Iterator[Any]:
    """A chromium; the test is skipped, with the reason, where Playwright or chromium is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()
