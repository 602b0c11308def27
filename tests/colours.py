"""A model whose features are mean colours: what it must find can be worked out by hand, and it is quick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing

RGB = {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0)}


class ColourModel(TowerModel):
    """Unit mean colour of an image; the axis of the colour that a text names (white if it names none)."""

    name = "colours"
    fingerprint = "c0105"
    feature_dim = 3
    logit_scale = 100.0
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self) -> None:
        self.preprocessing = Preprocessing(resize=8, crop=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.text = SimpleNamespace(encode=self._encode_texts)

    def _encode_texts(self, texts: Sequence[str], progress: object = None) -> torch.Tensor:
        rows = [next((rgb for name, rgb in RGB.items() if name in text.lower()), (1.0, 1.0, 1.0)) for text in texts]
        return torch.nn.functional.normalize(torch.tensor(rows), dim=1)

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(pixels.mean(dim=(2, 3)), dim=1)

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        patches = pixels.flatten(2).transpose(1, 2) + 1e-6
        return self.image_features(pixels), torch.nn.functional.normalize(patches, dim=2)


def paint(path: Path, rgb: tuple[int, int, int]) -> Path:
    """A picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), rgb).save(path)
    return path


def paint_sets(root: Path, seed: int = 0) -> Path:
    """`known` (red, green, blue, with one blue picture in the red folder), `dark` (the same, darker), `grey` (open).

    All known pictures are near an axis; grey ones are as far from all three axes as can be.
    """
    rng = np.random.default_rng(seed)
    for style, strength in (("known", 220), ("dark", 90)):
        for name, axis in RGB.items():
            for i in range(6):
                noise = rng.integers(0, strength // 3, 3)
                rgb = tuple(int(strength * a + n * (1 - a)) for a, n in zip(axis, noise))
                paint(root / style / name / f"{i}.png", rgb)
    paint(root / "known" / "red" / "blue after all.png", (10, 10, 220))
    for i in range(8):
        paint(root / "grey" / f"{i}.png", tuple(int(v) for v in 100 + 10 * i + rng.integers(0, 6, 3)))
    return root
