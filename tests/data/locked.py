"""Folders that may not be listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to list the folder. The superuser may list everything, so the test pretends."""
    scandir = os.scandir

    def refuse(path: Path | str) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
