"""What the score tests share: a short word list, a zero-shot classifier."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy import Model, ZeroShotClassifier

CLASSES = ["dog", "cat", "red car", "blue sketch"]
CANDIDATES = [f"{first} {second}" for first in ("old", "new", "odd", "far", "raw", "low") for second in "abcdefghij"]


@pytest.fixture(scope="session")
def word_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty candidate words in a file: mining all of WordNet would take minutes."""
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(CANDIDATES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def classifier(tiny_clip: Model) -> ZeroShotClassifier:
    """Four classes on the tiny CLIP. Session-wide: do not change it."""
    return ZeroShotClassifier(tiny_clip, CLASSES)
