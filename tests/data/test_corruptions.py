"""Corrupted copies: the same each time, and each of its kind; calibration with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.data.corruptions import CORRUPTIONS, corrupted, corruption_kinds, half_corrupted
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import load_images


def pixels(item: ImageItem) -> np.ndarray:
    return np.asarray(load_rgb(item), dtype=np.float64)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_copies_are_the_same_each_time_and_differ_from_the_image(photos: Path, kind: str) -> None:
    first, second = load_images(photos)[:2]
    copy = corrupted(first, kind)
    np.testing.assert_array_equal(pixels(copy), pixels(corrupted(first, kind)))
    assert pixels(copy).shape == pixels(first).shape and np.abs(pixels(copy) - pixels(first)).mean() > 5
    assert (copy.id, copy.label) == (first.id, first.label)
    if kind == "noise":
        assert not np.array_equal(pixels(copy) - pixels(first), pixels(corrupted(second, kind)) - pixels(second))


def test_what_each_does(photos: Path) -> None:
    image = load_images(photos)[0]
    original = pixels(image)
    np.testing.assert_array_equal(pixels(corrupted(image, "dark")), original // 4)
    assert pixels(corrupted(image, "blur")).std() < 0.9 * original.std()
    (grey,) = load_images([np.full((64, 64, 3), 128, np.uint8)])
    assert pixels(corrupted(grey, "noise")).std() == pytest.approx(255 * 0.15, rel=0.05)


def test_half_are_corrupted_and_kinds_share_them() -> None:
    items = [ImageItem(str(i), Image.new("RGB", (2, 2), "white")) for i in range(2000)]

    def drawn() -> list[str]:
        mixed = zip(half_corrupted(items, ["blur", "dark"]), items)
        return ["none" if one is item else "dark" if pixels(one).max() < 255 else "blur" for one, item in mixed]

    kinds = drawn()
    assert [kinds.count(kind) / 2000 for kind in ("blur", "dark")] == pytest.approx([0.25, 0.25], abs=0.03)
    assert drawn() == kinds


@pytest.mark.parametrize(("kinds", "named"), [("blurr", "'blur'"), (["noise", "fog"], "'fog'")])
def test_unknown_kinds(kinds: str | list[str], named: str) -> None:
    with pytest.raises(InputError, match=named):
        corruption_kinds(kinds)


def test_the_guarantee_says_so_and_is_saved(tiny_clip: de.Model, photos: Path, tmp_path: Path) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    plain = de.Detector(classifier, "max-logit").calibrate(photos, keep=0.5)
    tolerant = de.Detector(classifier, "max-logit").calibrate(photos, keep=0.5, tolerate="blur,noise")
    assert tolerant.guarantee is not None and plain.guarantee is not None
    assert "blur, noise" in str(tolerant.guarantee) and tolerant.guarantee.to_dict()["tolerate"] == ["blur", "noise"]
    mixed = half_corrupted(load_images(photos), ["blur", "noise"])
    expected = classifier.similarities(mixed).max(axis=1)
    np.testing.assert_allclose(tolerant.calibration_scores, np.sort(expected), atol=1e-6)
    assert not np.allclose(tolerant.calibration_scores, plain.calibration_scores)
    tolerant.save(tmp_path / "detector")
    assert de.Detector.load(tmp_path / "detector", tiny_clip).guarantee == tolerant.guarantee


def test_features_cannot_be_corrupted(tiny_clip: de.Model) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    features = np.eye(4, tiny_clip.feature_dim, dtype=np.float32)
    with pytest.raises(InputError, match="`tolerate`"):
        de.Detector(classifier, "max-logit").calibrate(features, tolerate="blur")
