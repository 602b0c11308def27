"""Maps for every family of models: the usual method works, and what a tower cannot do is refused with the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation import Explainer
from tests.families import write_align, write_chinese_clip, write_metaclip_2, write_siglip

FAMILIES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "siglip": (write_siglip, "occlusion", "rollout"),
    "align": (write_align, "grad-cam", "rollout"),
    "metaclip_2": (write_metaclip_2, "rollout", "grad-cam"),
    "chinese_clip": (write_chinese_clip, "rollout", "grad-cam"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    write, usual, impossible = FAMILIES[family]
    model = de.load_model(write(tmp_path / family))
    classifier = de.ZeroShotClassifier(model, ["dog", "cat"])
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (50, 50, 3), dtype=np.uint8)) for _ in range(2)]
    assert Explainer(classifier).method.name == usual
    assert isinstance(model, de.TowerModel)
    for one in de.explain(classifier, images):
        assert np.isfinite(one.heatmap).all() and one.heatmap.ndim == 2
    pixels = torch.from_numpy(np.stack([model.preprocessing(image) for image in images]))
    with torch.no_grad():
        patches = model.image_and_patch_features(pixels)[1].double().numpy()
    for one, rows in zip(de.explain(classifier, images, method="value-path", target="cat"), patches):
        expected = rows @ classifier.text_features[1].double().numpy()
        np.testing.assert_allclose(one.heatmap.ravel(), expected, atol=1e-5)
    with pytest.raises(InputError, match=rf"{impossible} .*value-path"):
        de.explain(classifier, images, method=impossible)
