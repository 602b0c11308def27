"""Small pictures of three classes that a tuned classifier can tell apart by colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ["cat", "dog", "red car"]


def write_pictures(folder: Path, per_class: int = 6, seed: int = 0) -> Path:
    """`folder/<class>/<i>.png`, each class in a colour of its own. Returns `folder`."""
    rng = np.random.default_rng(seed)
    for k, name in enumerate(["cat", "dog", "red_car"]):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = rng.integers(0, 80, (40, 48, 3), dtype=np.uint8)
            pixels[..., k] += 150
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder
