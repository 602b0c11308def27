"""What a map costs, as a ratio to encoding the same images: ViT-B/16's shapes with random weights, and `lite`.

Peer, measured in the same run: `image_features` of the batch, which gives the verdict. The map comes on top of that.
"""

from __future__ import annotations

import numpy as np
import torch

import deltaenergy as de
from deltaenergy.explanation.methods import METHODS, ExplainedModel, Target, class_target, make_maps
from deltaenergy.models.base import TowerModel, require_towers
from timing import alternate, report
from towers import RandomClip

IMAGES, CLASSES, ROUNDS = 2, 20, 5


def measure(name: str, model: TowerModel, methods: tuple[str, ...]) -> None:
    side = model.preprocessing.crop
    pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(IMAGES, 3, side, side)).astype(np.float32))
    classifier = de.ZeroShotClassifier(model, [f"thing {i}" for i in range(CLASSES)])
    explained = ExplainedModel(classifier, model)

    def first_class(rows: torch.Tensor) -> Target:
        return class_target(torch.zeros_like(rows))

    def encode() -> torch.Tensor:
        with torch.inference_mode():
            return model.image_features(pixels)

    for method in methods:
        slow = method == "occlusion"  # 65 images for each: one round says it
        rounds, goal = (1, "< 100") if slow else (ROUNDS, "< 5")
        ratio = alternate(lambda m=method: make_maps(METHODS[m], explained, pixels, first_class), encode, rounds)
        report(f"{name}: {method} / encoding {IMAGES} images", ratio, "time", goal=goal)


def main() -> None:
    measure("lite", require_towers(de.load_model("lite"), "this bench"), ("value-path", "grad-cam", "occlusion"))
    # Occlusion is 65 passes of any tower; on this one they take minutes and tell no more.
    measure("ViT-B/16", RandomClip(), ("value-path", "rollout"))


if __name__ == "__main__":
    main()
