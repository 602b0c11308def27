"""torch tensors, Datasets and DataLoaders as images: the very pixels, labels where they are told, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import deltaenergy as de
from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.items import load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import load_images

RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (4, 9, 11, 3), dtype=np.uint8)
FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)  # (N, channels, height, width)


def seen(images: Any) -> np.ndarray:
    return np.stack([np.asarray(load_rgb(item)) for item in load_images(images)])


@pytest.mark.parametrize(
    "images",
    [
        FIRST,
        list(FIRST),
        FIRST.float() / 255,
        (FIRST.double() / 255).requires_grad_(),
        [one.half() / 255 for one in FIRST],
        torch.from_numpy(PIXELS),
        DataLoader(TensorDataset(FIRST), batch_size=3),
        TensorDataset(FIRST.float() / 255, torch.arange(4)),
    ],
    ids=["uint8", "list", "float", "double", "half", "channels last", "loader", "dataset"],
)
def test_the_pixels_are_those_of_the_tensor(images: Any) -> None:
    np.testing.assert_array_equal(seen(images), PIXELS)


def test_one_image_grey_and_transparent() -> None:
    np.testing.assert_array_equal(seen(FIRST[2]), PIXELS[2:3])
    grey = FIRST[:1, :1]
    np.testing.assert_array_equal(seen(grey)[..., 0], PIXELS[:1, ..., 0])
    np.testing.assert_array_equal(seen(FIRST[0, 0])[0, ..., 0], PIXELS[0, ..., 0])
    see_through = torch.cat([FIRST[:1], torch.zeros(1, 1, 9, 11, dtype=torch.uint8)], dim=1)
    assert (seen(see_through) == 255).all()  # laid on white, as everywhere


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (FIRST.float(), r"0 to 255.*from 0 to 1"),
        (FIRST.float() / 255 - 0.5, "before they are normalised"),
        (torch.full((3, 8, 8), float("nan")), "must be from 0 to 1"),
        (torch.zeros(2, 5, 8, 8), r"shape \(5, 8, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "int64; pixels are uint8"),
        (torch.zeros(3, 0, 8), "no pixels"),
        ([torch.zeros(8)], r"shape \(8,\)"),
        (torch.zeros(3, 8, 8, device="meta"), "cannot become a NumPy array"),
    ],
)
def test_other_tensors_are_refused(images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_images(images)


class Named(Dataset[Any]):
    """As torchvision's: numbers with names, and a picture only when it is asked for."""

    classes = ("cat", "dog")
    targets = (1, 0, 1, 0)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index == 3:
            return {"pixel_values": FIRST[3], "label": 0}
        return Image.fromarray(PIXELS[index]), self.targets[index]


def test_a_data_set_is_read_when_its_turn_comes() -> None:
    data = Named()
    items = load_images(data)
    assert not data.asked
    assert [item.label for item in items] == ["dog", "cat", "dog", "cat"]
    np.testing.assert_array_equal(seen(data), PIXELS)
    part = load_images(Subset(data, [3, 0]))
    assert [item.label for item in part] == ["cat", "dog"]
    np.testing.assert_array_equal(np.asarray(load_rgb(part[0])), PIXELS[3])


def test_a_loader_gives_its_own_order_and_images() -> None:
    loader = DataLoader(Named(), batch_size=3, sampler=[2, 0, 1, 3], drop_last=True)
    np.testing.assert_array_equal(seen(loader), PIXELS[[2, 0, 1]])
    assert [item.id for item in load_images(loader)] == ["image 2", "image 0", "image 1"]
    np.testing.assert_array_equal(seen(DataLoader(Named(), batch_size=None)), PIXELS)


def test_a_stream_of_images() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(FIRST)

    np.testing.assert_array_equal(seen(Stream()), PIXELS)
    np.testing.assert_array_equal(seen(DataLoader(Stream(), batch_size=2)), PIXELS)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ({"label": 1}, "image or img"),
        (7, "a int"),
        (FIRST, "several images at once"),
        (FIRST[0].float(), "before they are normalised"),
    ],
)
def test_elements_that_are_no_images_are_unreadable(element: Any, reason: str) -> None:
    class Odd(Named):
        def __getitem__(self, index: int) -> Any:
            return element

    with pytest.raises(UnreadableImage, match=reason):
        open_image(load_images(Odd())[0].source)


def test_paths_in_a_data_set(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).save(tmp_path / "one.png")

    class Paths(Named):
        def __getitem__(self, index: int) -> Any:
            return str(tmp_path / "one.png"), 0

    np.testing.assert_array_equal(seen(Paths())[1], PIXELS[0])


def test_features_of_tensors_files_and_arrays_are_the_same(tiny_clip: de.TowerModel) -> None:
    pictures = [Image.fromarray(one) for one in PIXELS]
    expected = tiny_clip.encode_images(pictures)
    for images in (FIRST, FIRST.float() / 255, Named(), DataLoader(Named(), batch_size=2), list(PIXELS)):
        np.testing.assert_allclose(tiny_clip.encode_images(images), expected, atol=1e-6)
