"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.checkpoints import write_clip

if TYPE_CHECKING:
    from deltaenergy import Model

# How long an example takes says nothing about the code on a machine that does other things too.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real pictures and CLIP features; tests that use it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DELTAENERGY_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip("set DELTAENERGY_TEST_DATA to the folder with real pictures to run this test")
    return folder


@pytest.fixture(scope="session")
def tiny_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CLIP checkpoint (random weights) in transformers format."""
    return write_clip(tmp_path_factory.mktemp("checkpoints") / "tiny-clip")


@pytest.fixture(scope="session")
def tiny_clip(tiny_clip_folder: Path) -> Model:
    """The tiny CLIP, loaded. Session-wide: do not change it."""
    from deltaenergy import load_model

    return load_model(tiny_clip_folder)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of eight small pictures in two class folders, `dog` and `cat`."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"
