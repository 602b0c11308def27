"""What the score tests share: a short word list, a zero-shot classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltaenergy import Model, PrecomputedClassifier, ZeroShotClassifier

# For scores that do not ask which classifier they are bound to.
ANY_CLASSIFIER = PrecomputedClassifier(np.eye(4, dtype=np.float32), ["one", "two", "three", "four"])
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
