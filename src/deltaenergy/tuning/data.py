"""Training views: random crops of the images, encoded once and kept, or encoded anew in every step.

The view is CoOp's: a crop of 8–100 % of the area and aspect ratio 3/4–4/3, resized with bicubic interpolation, and
flipped half the time. With V cached views per image, an epoch costs no image tower at all; each step draws one of
the V views of each of its images. `LiveViews` draws a fresh crop every time, as CoOp does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from PIL import Image

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.progress import Progress

if TYPE_CHECKING:
    import numpy.typing as npt

DECODE_THREADS = 4
ENCODE_BATCH = 32
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Batch:
    """Training images of one step: unit features (B, D), classes (B,), unit patch features (B, P, D) if needed."""

    features: torch.Tensor
    labels: torch.Tensor
    patches: torch.Tensor | None = None


class TrainImages(Protocol):
    """Labelled training images that give batches of random views."""

    labels: torch.Tensor

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> Batch:
        """A random view of each of the images `indices`."""

    def mean_features(self) -> torch.Tensor:
        """A unit feature per image (N, D): the direction of the mean over its views."""


class CachedViews:
    """V views per image, encoded once.

    Args:
        features: unit features (N, V, D).
        labels: classes (N,).
        patches: unit patch features (N, V, P, D), kept in half precision, for methods that look at patches.
    """

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, patches: torch.Tensor | None = None) -> None:
        self.features = features
        self.labels = labels
        self.patches = patches

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> Batch:
        """One of the V views of each image, drawn by `generator`."""
        views = torch.randint(self.features.shape[1], indices.shape, generator=generator)
        device = self.labels.device
        features = self.features[indices, views].to(device)
        patches = None if self.patches is None else self.patches[indices, views].to(device).to(features.dtype)
        return Batch(features, self.labels[indices.to(device)], patches)

    def mean_features(self) -> torch.Tensor:
        """Unit mean over the views (N, D)."""
        return torch.nn.functional.normalize(self.features.mean(dim=1), dim=-1).to(self.labels.device)


class LiveViews:
    """A fresh view of each image in every step, encoded on the spot."""

    def __init__(
        self, model: TowerModel, items: Sequence[ImageItem], labels: torch.Tensor, seed: int, *, patches: bool = False
    ) -> None:
        self.model = model
        self.items = list(items)
        self.labels = labels.to(model.device)
        self.seed = seed
        self.with_patches = patches

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> Batch:
        """The view of image i in an epoch depends on seed, epoch and i alone, so that a resumed run sees the same."""
        chosen = indices.tolist()
        seeds = [(self.seed, epoch, i) for i in chosen]
        pixels = torch.from_numpy(np.stack(list(_pixels(self.model, [self.items[i] for i in chosen], seeds))))
        features, patches = _encode(self.model, pixels, self.with_patches)
        return Batch(features, self.labels[indices.to(self.labels.device)], patches)

    def mean_features(self) -> torch.Tensor:
        """Unit features of the test view (N, D)."""
        return torch.from_numpy(self.model.encode_images(self.items)).to(self.labels.device)


def encode_views(
    model: TowerModel,
    items: Sequence[ImageItem],
    labels: Sequence[int],
    views: int,
    seed: int,
    *,
    patches: bool = False,
    progress: Progress | None = None,
) -> CachedViews:
    """Encode `views` random views of each image. View v of image i depends on seed, v and i alone."""
    if views < 1:
        raise InputError(f"views must be at least 1, or 'live', got {views}.")
    jobs = [(item, (seed, v, i)) for i, item in enumerate(items) for v in range(views)]
    features: list[torch.Tensor] = []
    patch_features: list[torch.Tensor] = []
    done = 0
    while done < len(jobs):
        some = jobs[done : done + ENCODE_BATCH]
        array = np.stack(list(_pixels(model, [item for item, _ in some], [seeds for _, seeds in some])))
        found, found_patches = _encode(model, torch.from_numpy(array), patches)
        features.append(found.float().cpu())
        if found_patches is not None:
            if not patch_features:
                _check_room(len(jobs), found_patches)
            patch_features.append(found_patches.half().cpu())
        done += len(some)
        if progress is not None:
            progress(done, len(jobs))
    stacked = torch.cat(features).view(len(items), views, -1)
    stacked_patches = None
    if patch_features:
        flat = torch.cat(patch_features)
        stacked_patches = flat.view(len(items), views, *flat.shape[1:])
    return CachedViews(stacked, torch.tensor(labels, device=model.device), stacked_patches)


def random_view(image: Image.Image, preprocessing: Preprocessing, rng: np.random.Generator) -> Image.Image:
    """A random crop of `image`, resized to the model's input size with bicubic interpolation, perhaps flipped."""
    left, top, width, height = random_box(image.width, image.height, rng)
    side = preprocessing.crop
    view = image.crop((left, top, left + width, top + height)).resize((side, side), Image.Resampling.BICUBIC)
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else view


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width, height of a crop with a random share `AREA` of the picture and aspect ratio within `RATIO`.

    Ten attempts; if none fits (a very long picture), the largest centred crop with an allowed ratio.
    """
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    w, h = width, height
    if width / height < RATIO[0]:
        h = max(1, round(width / RATIO[0]))
    elif width / height > RATIO[1]:
        w = max(1, round(height * RATIO[1]))
    return (width - w) // 2, (height - h) // 2, w, h


def _pixels(
    model: TowerModel, items: Sequence[ImageItem], seeds: Sequence[tuple[int, int, int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """The normalised pixels of one random view per item."""

    def read(item: ImageItem, seed: tuple[int, int, int]) -> npt.NDArray[np.float32] | str:
        try:
            image = open_image(item.source)
        except UnreadableImage as error:
            return f"{item.id}: {error}"
        view = random_view(image, model.preprocessing, np.random.default_rng(list(seed)))
        return model.preprocessing.normalise(view)

    with ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="views") as pool:
        for pixels in pool.map(read, items, seeds):
            if isinstance(pixels, str):
                raise InputError(f"A training image could not be read. Remove or replace it.\n  {pixels}")
            yield pixels


def _encode(model: TowerModel, pixels: torch.Tensor, patches: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    # no_grad, not inference_mode: the features take part in training.
    with torch.no_grad():
        pixels = pixels.to(model.device)
        if patches:
            return model.image_and_patch_features(pixels)
        return model.image_features(pixels), None


def _check_room(count: int, patches: torch.Tensor) -> None:
    """Refuse a cache of patch features that would take more than half of the machine's memory."""
    needed = count * patches[0].numel() * 2
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available / 2:
        raise InputError(
            f"Cached patch features of {count} views would take {needed / 2**30:.1f} GB of memory. "
            "Use fewer views (views=2), or views='live'."
        )
