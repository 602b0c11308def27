"""An epoch of tuning from cached views beside one that encodes fresh views in every step, as CoOp does.

A CLIP of true ViT-B/32 image shapes and random weights, 32 images of 8 classes, one epoch of coop each; the cost of
encoding the cache once is printed beside it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel

from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.methods import TrainViews
from deltaenergy.data.items import ImageItem
from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.tuning.tune import fit
from deltaenergy.tuning.views import CachedViews, LiveViews, encode_views
from timing import alternate, report
from towers import class_names, text_tower

CLASSES, IMAGES, VIEWS = 8, 32, 8


class RandomClip(TowerModel):
    """A true-sized image tower beside the text tower."""

    def __init__(self) -> None:
        self.name, self.fingerprint, self.feature_dim, self.logit_scale = "random", "random", 512, 100.0
        self.preprocessing, self.text = Preprocessing(), text_tower()
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.image_tower = CLIPVisionModel(CLIPVisionConfig(projection_dim=512)).eval().requires_grad_(False)
        self.projection = torch.nn.Linear(768, 512, bias=False).requires_grad_(False)

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Unit features of the class token."""
        return torch.nn.functional.normalize(
            self.projection(self.image_tower(pixel_values=pixels).pooler_output), dim=1
        )

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Coop needs no patches."""
        raise NotImplementedError("this bench tunes coop, which needs no patches")


def main() -> None:
    model, names = RandomClip(), class_names(CLASSES)
    labels = [i % CLASSES for i in range(IMAGES)]
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        items = []
        for i in range(IMAGES):
            path = Path(folder) / f"{i}.jpg"
            Image.fromarray(rng.integers(0, 256, (375, 500, 3), dtype=np.uint8)).save(path)
            items.append(ImageItem(str(path), path))
        began = time.perf_counter()
        cached = CachedViews(encode_views(model, items, VIEWS, seed=1)["features"], torch.tensor(labels))
        once = time.perf_counter() - began
        live = LiveViews(model, items, torch.tensor(labels), seed=1, needs=frozenset())

        def epoch(images: TrainViews) -> None:
            classifier = CoOp().build(model, names, images, torch.Generator().manual_seed(0))
            fit(classifier, images, recipe={"epochs": 1}, generator=torch.Generator().manual_seed(0))

        times = alternate(lambda: epoch(cached), lambda: epoch(live), rounds=3)
    report("epoch with live views / with cached views", times, "speed-up", goal="≥ 2")
    print(f"encoding {VIEWS} views of {IMAGES} images once: {once:.1f} s")


if __name__ == "__main__":
    main()
