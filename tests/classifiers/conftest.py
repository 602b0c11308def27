"""Labelled pictures for tuning, encoded once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy import Model
from deltaenergy.tuning import TrainSet, prepare_training
from tests.classifiers.pictures import CLASSES, write_pictures


@pytest.fixture(scope="session")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with six pictures of each of three classes."""
    return write_pictures(tmp_path_factory.mktemp("coloured") / "train")


@pytest.fixture(scope="session")
def train_set(tiny_clip: Model, coloured: Path) -> TrainSet:
    """Four shots per class with three views, patches included."""
    return prepare_training(tiny_clip, CLASSES, coloured, shots=4, seed=1, views=3, patches=True)
