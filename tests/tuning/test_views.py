"""Training views: the crop's distribution, determinism, and cached against live."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deltaenergy import Model
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.tuning.fewshot import sample_few_shots
from deltaenergy.tuning.prepare import prepare_training
from deltaenergy.tuning.views import CachedViews, LiveViews, encode_views, random_box, random_view


def items_in(folder: Path) -> list[ImageItem]:
    return [ImageItem(str(path), path, path.parent.name) for path in sorted(folder.rglob("*.png"))]


def test_boxes_have_the_recipe_s_areas_and_ratios() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(300, 260, rng) for _ in range(4000)])
    left, top, width, height = boxes.T
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + width <= 300).all() and (top + height <= 260).all()
    share = width * height / (300 * 260)
    ratio = width / height
    # Sides are rounded to whole pixels, so bounds hold up to a pixel.
    assert share.min() > 0.078 and share.max() <= 1.0
    assert ratio.min() > 0.72 and ratio.max() < 1.36
    # Rejection of crops that do not fit thins out the largest; what remains is uniform below 60 % of the area.
    small = np.histogram(share[share < 0.6], bins=4, range=(0.08, 0.6))[0]
    assert small.max() / small.min() < 1.25


@pytest.mark.parametrize("size", [(1000, 10), (10, 1000), (1, 1), (3, 2)])
def test_boxes_of_extreme_pictures_fit(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        left, top, width, height = random_box(*size, rng)
        assert width >= 1 and height >= 1
        assert 0 <= left <= size[0] - width and 0 <= top <= size[1] - height


def test_half_of_the_views_are_flipped() -> None:
    ramp = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 3, (64, 1, 3)))
    rng = np.random.default_rng(1)
    falls = 0
    for _ in range(200):
        pixels = np.asarray(random_view(ramp, Preprocessing(crop=32), rng), dtype=float)
        falls += pixels[:, 0].mean() > pixels[:, -1].mean()
    assert 70 < falls < 130


def test_cached_views_depend_on_seed_and_image_alone(tiny_clip: Model, photos: Path) -> None:
    items = items_in(photos)
    cached = encode_views(tiny_clip, items, 3, 5, frozenset({Need.PATCHES}))
    features = cached["features"]
    assert features.shape == (8, 3, 16)
    assert cached["patches"].shape == (8, 3, 16, 16)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(8, 3))
    again = encode_views(tiny_clip, items, 3, seed=5)
    torch.testing.assert_close(again["features"], features, atol=1e-6, rtol=0)
    other = encode_views(tiny_clip, items, 3, seed=6)
    assert (other["features"] - features).abs().max() > 1e-3
    assert (features[:, 0] - features[:, 1]).abs().amax(dim=1).min() > 1e-5


def test_live_views_are_those_of_their_epoch(tiny_clip: Model, photos: Path) -> None:
    items = items_in(photos)
    live = LiveViews(tiny_clip, items, torch.tensor([0] * 4 + [1] * 4), seed=5, needs=frozenset())
    generator = torch.Generator()
    one = live.batch(torch.tensor([3, 5]), 0, generator)
    alone = live.batch(torch.tensor([5]), 0, generator)
    later = live.batch(torch.tensor([3, 5]), 1, generator)
    torch.testing.assert_close(one.features[1:], alone.features, atol=1e-6, rtol=0)
    assert (one.features - later.features).abs().max() > 1e-4
    assert one.labels.tolist() == [0, 1]


def test_an_unreadable_training_image_is_named(tiny_clip: Model, photos: Path) -> None:
    bad = photos / "cat" / "bad.png"
    bad.write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"(?s)could not be.*bad\.png"):
        encode_views(tiny_clip, items_in(photos), 1, seed=1)
    with pytest.raises(InputError, match="at least 1"):
        encode_views(tiny_clip, items_in(photos), 0, seed=1)


def test_the_test_view_is_what_the_model_sees_in_use(tiny_clip: Model, photos: Path) -> None:
    items = items_in(photos)
    found = encode_views(tiny_clip, items, "test", 5, frozenset({Need.PATCHES, Need.PIXELS}))
    expected = tiny_clip.encode(items, patches=True)  # type: ignore[attr-defined]
    assert found["features"].shape == (8, 1, 16) and found["pixels"].shape == (8, 1, 3, 32, 32)
    np.testing.assert_allclose(found["features"][:, 0].numpy(), expected.features, atol=1e-6)
    np.testing.assert_allclose(found["patches"][:, 0].float().numpy(), expected.patches, atol=1e-3)  # half precision
    again = encode_views(tiny_clip, items, "test", seed=6)
    torch.testing.assert_close(again["features"], found["features"], atol=1e-6, rtol=0)


def test_views_of_another_seed_are_not_taken_from_the_cache(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    """The same images in the same order; only the crops differ."""
    sample = sample_few_shots(items_in(photos), ["cat", "dog"], 4, 1)

    def features(seed: int, cache: Path | None) -> torch.Tensor:
        drawn = dataclasses.replace(sample, seed=seed)
        prepared = prepare_training(tiny_clip, ["cat", "dog"], drawn, views=1, cache=cache)
        assert isinstance(prepared.images, CachedViews)
        return prepared.images.features

    first = features(1, tmp_path)
    assert torch.equal(features(1, tmp_path), first)
    assert not torch.equal(features(2, tmp_path), first)
    torch.testing.assert_close(features(2, tmp_path), features(2, None))
