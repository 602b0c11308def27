"""Every score's gradient against differences of the score itself; one that has none must say so by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation.methods import classify_for_score, gradients, score_target

CLASSES = ["dog", "cat", "red car", "blue car"]
# Scores whose step of their own has no derivative.
WITHOUT = {"odin"}
RUNNABLE = [name for name in de.list_scores() if de.make_score(name).missing is None]


def pictures(count: int, seed: int) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]


@pytest.mark.parametrize("name", RUNNABLE)
def test_gradient_is_that_of_the_score(
    tiny_clip: de.TowerModel, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, CLASSES)
    known = tmp_path_factory.mktemp("known")
    for i, image in enumerate(pictures(16, seed=1)):
        (known / CLASSES[i % 4]).mkdir(exist_ok=True)
        image.save(known / CLASSES[i % 4] / f"{i}.png")
    judge = de.Detector(classifier, name).calibrate(known, confidence=None)
    pixels = torch.from_numpy(np.stack([tiny_clip.preprocessing(image) for image in pictures(3, seed=2)]))
    with torch.no_grad():
        z, u = (part.double() for part in tiny_clip.image_and_patch_features(pixels))
    z, u = z.requires_grad_(), u.requires_grad_()
    target = score_target(judge.scorer)
    if name in WITHOUT:
        with pytest.raises(InputError, match=rf"The score '{name}' has no gradient.*occlusion"):
            gradients(target, classify_for_score(classifier, z, u, pixels), [z, u])
        return
    inputs = classify_for_score(classifier, z, u, pixels)
    torch.testing.assert_close(target(inputs), judge.scorer(inputs))
    found = gradients(target, inputs, [z, u])

    def score(dz: torch.Tensor, du: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return target(classify_for_score(classifier, z + dz, u + du, pixels)).double()

    generator = torch.Generator().manual_seed(0)
    checked = 0
    for _ in range(4):
        ways = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for tensor in (z, u)]
        step = 1e-6
        difference = (score(step * ways[0], step * ways[1]) - score(-step * ways[0], -step * ways[1])) / (2 * step)
        expected = sum(
            (torch.zeros_like(way) if g is None else g * way).flatten(1).sum(1) for g, way in zip(found, ways)
        )
        assert isinstance(expected, torch.Tensor)
        torch.testing.assert_close(expected, difference, rtol=1e-3, atol=1e-5)
        checked += int((difference.abs() > 1e-4).sum())
    assert checked, "no difference was large enough to tell anything"
