"""Pictures, a calibrated detector and stores of several shards; and one Ray for all tests that need it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from tests.data.conftest import no_patience, s3_bucket, s3_environment, s3_store  # noqa: F401 (fixtures)


@dataclass(frozen=True)
class Scene:
    """Where things are. Session-wide: do not change it."""

    root: Path
    images: Path
    detector: Path
    store: Path


def draw(folder: Path, count: int, seed: int) -> Path:
    """Small pictures of one colour each, with noise."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.clip(rng.integers(0, 256, 3) + rng.normal(0, 20, (32, 40, 3)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    return folder


@pytest.fixture(scope="session")
def scene(tiny_clip: de.TowerModel, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """23 pictures, one of them damaged, in a store of shards of 5 images."""
    root = tmp_path_factory.mktemp("scene")
    images = draw(root / "images", 22, 1)
    (images / "007-damaged.png").write_bytes(b"no picture")
    detector = de.Detector(de.ZeroShotClassifier(tiny_clip, ["cat", "dog", "bird"]), "mcm")
    detector.calibrate(draw(root / "known", 30, 2)).save(root / "detector")
    de.build_store(tiny_clip, images, root / "store", shard_size=5)
    return Scene(root, images, root / "detector", root / "store")
