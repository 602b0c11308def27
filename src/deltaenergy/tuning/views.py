"""Views of images, random ones (cropped, flipped) or the test view: encoded by the frozen model or kept as bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.estimate import memory_of
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable, decoded
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing, resized

if TYPE_CHECKING:
    import numpy.typing as npt

DECODE_THREADS = 4
ENCODE_BATCH = 32
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
# Stands for the seed of a view that is not random.
TEST_VIEW = None


@dataclass(frozen=True)
class EncodedViews:
    """What the frozen model makes of some views; `pixels` are the views as bytes."""

    features: torch.Tensor
    patches: torch.Tensor | None = None
    states: torch.Tensor | None = None
    pixels: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        kinds = {"features": self.features, "patches": self.patches, "states": self.states, "pixels": self.pixels}
        return {name: tensor for name, tensor in kinds.items() if tensor is not None}


def encode_views(
    model: TowerModel,
    items: Sequence[ImageItem],
    views: int | Literal["test"],
    seed: int,
    needs: frozenset[Need] = frozenset(),
    progress: Progress | None = None,
    *,
    full_precision: bool = False,
) -> EncodedViews:
    """`views` random views of each image, (N, V, …), or its test view, (N, 1, …).

    View v of image i depends on seed, v and i alone. Patches and patch states are kept in half precision: they are
    many, and only compared. `full_precision` keeps them as they are served.
    Raises `UnreadableImagesError` after all have been tried, so that every unreadable image is named at once.
    """
    if views != "test" and views < 1:
        raise InputError(f"views must be at least 1, 'test' or 'live', got {views}.")
    count = 1 if views == "test" else views
    jobs = [
        (item, TEST_VIEW if views == "test" else (seed, v, i)) for i, item in enumerate(items) for v in range(count)
    ]
    kept: dict[str, list[torch.Tensor]] = {}
    unreadable: dict[str, Unreadable] = {}
    for start in range(0, len(jobs), ENCODE_BATCH):
        some = jobs[start : start + ENCODE_BATCH]
        found = view_pixels(model, [item for item, _ in some], [seeds for _, seeds in some], unreadable)
        arrays = list(found)
        if not unreadable:
            raw = torch.from_numpy(np.stack(arrays))
            encoded = encode(model, normalise(model, raw).to(model.device), needs)
            tensors = encoded.tensors() | ({"pixels": raw} if Need.PIXELS in needs else {})
            if not kept:
                _check_room(len(jobs), {name: _kept(name, one, full_precision) for name, one in tensors.items()})
            for name, tensor in tensors.items():
                kept.setdefault(name, []).append(_kept(name, tensor, full_precision).cpu())
        if progress is not None:
            progress(start + len(some), len(jobs))
    if unreadable:
        raise UnreadableImagesError(unreadable.values())
    stacked = {name: torch.cat(parts) for name, parts in kept.items()}
    return EncodedViews(**{name: flat.view(len(items), count, *flat.shape[1:]) for name, flat in stacked.items()})


def encode(model: TowerModel, pixels: torch.Tensor, needs: frozenset[Need]) -> EncodedViews:
    """Features of preprocessed pixels, with patches or patch states if they are needed."""
    # no_grad, not inference_mode: the features take part in training.
    with torch.no_grad():
        if Need.STATES in needs and model.vision is not None:
            outputs = model.vision.run(pixels, patches=Need.PATCHES in needs, hidden=True)
            return EncodedViews(outputs.features, outputs.patches, outputs.hidden)
        if needs & {Need.PATCHES, Need.STATES}:
            features, patches = model.image_and_patch_features(pixels)
            # A tower without patch states gives its patch features in their place.
            return EncodedViews(features, patches, patches if Need.STATES in needs else None)
        return EncodedViews(model.image_features(pixels))


def _kept(name: str, tensor: torch.Tensor, full_precision: bool) -> torch.Tensor:
    if name in ("patches", "states") and not full_precision:
        return tensor.half()
    return tensor if name == "pixels" else tensor.float()


def random_view(image: Image.Image, preprocessing: Preprocessing, rng: np.random.Generator) -> Image.Image:
    """A random crop of `image`, resized to the model's input size with bicubic interpolation, perhaps flipped."""
    left, top, width, height = random_box(image.width, image.height, rng)
    side = preprocessing.crop
    cropped = image.crop((left, top, left + width, top + height))
    view = resized(cropped, (side, side), Image.Resampling.BICUBIC)
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


def view_pixels(
    model: TowerModel,
    items: Sequence[ImageItem],
    seeds: Sequence[tuple[int, int, int] | None],
    unreadable: dict[str, Unreadable] | None = None,
) -> Iterator[npt.NDArray[np.uint8]]:
    """One view (3, S, S) per item, as bytes: random, or the test view where there is no seed.

    Images that cannot be read go to `unreadable`, or are an error.
    """

    def read(item: ImageItem, seed: tuple[int, int, int] | None) -> npt.NDArray[np.uint8] | Unreadable:
        try:
            with decoded(item) as image:
                if seed is TEST_VIEW:
                    view = model.preprocessing.frame(image)
                else:
                    view = random_view(image, model.preprocessing, np.random.default_rng(list(seed)))
        except UnreadableImage as error:
            return Unreadable(item.id, str(error))
        return np.ascontiguousarray(np.asarray(view.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1))

    with ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="views") as pool:
        for found in pool.map(read, items, seeds):
            if not isinstance(found, Unreadable):
                yield found
            elif unreadable is None:
                raise UnreadableImagesError([found])
            else:
                unreadable[found.id] = found


def normalise(model: TowerModel, pixels: torch.Tensor) -> torch.Tensor:
    """Bytes (N, 3, S, S) -> what the image tower takes: (x/255 − mean)/std, as `Preprocessing.normalise` does."""
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1) for values in (model.preprocessing.mean, model.preprocessing.std)
    )
    return pixels.float().div_(255).sub_(mean).div_(std)


def _check_room(count: int, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse a cache that would take more than half of the machine's memory."""
    needed = count * sum(tensor[0].numel() * tensor.element_size() for tensor in tensors.values())
    if needed > memory_of(torch.device("cpu")) / 2:
        raise InputError(
            f"{count} cached views ({', '.join(tensors)}) would take {needed / 2**30:.1f} GB of memory. "
            "Use fewer views (views=2), or views='live'."
        )
