"""Training images by need: random views or the test view as features, patches, patch states or pixels.

The random view is CoOp's: a crop of 8–100% of the area and aspect ratio 3/4–4/3, resized with bicubic interpolation,
and flipped half the time. With V cached views per image, an epoch does not run the frozen tower; each step draws one of
the V views of each of its images. Methods that train through the image tower get the views' pixels, stored as bytes.
`LiveViews` draws a fresh crop every time, as CoOp does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.base import Inputs, TrainBatch
from deltaenergy.classifiers.estimate import memory_of
from deltaenergy.core.needs import OF_IMAGES, Need
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
# Validation images per batch of a prompted tower or of patches.
VALIDATION_BATCH = 32
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
# The seed of a view that is not random.
TEST_VIEW = None
# What the frozen model gives of some views, by kind: features, and if needed patches, states and pixels.
Tensors: TypeAlias = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Domains:
    """The domain of each image, counted from 0, and the domains' names; one domain if none are known."""

    numbers: torch.Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, items: Sequence[ImageItem]) -> Domains:
        """The domains of some images, in alphabetical order."""
        names = sorted({item.domain or "" for item in items})
        numbers = torch.tensor([names.index(item.domain or "") for item in items], dtype=torch.long)
        return cls(numbers, tuple(name.replace("_", " ") or "train" for name in names))


class CachedViews:
    """V views per image, encoded once by the frozen model.

    Args:
        features: unit features (N, V, D).
        labels: classes (N,).
        patches: unit patch features (N, V, P, D) in half precision, for methods that use patches.
        states: patch states (N, V, P, H) before the projection, in half precision.
        pixels: views (N, V, 3, S, S) as bytes, for methods that train through the image tower.
        domains: of the images; one by default.
        model: its preprocessing normalises the bytes; needed with `pixels`.
    """

    def __init__(
        self,
        features: torch.Tensor,
        labels: torch.Tensor,
        patches: torch.Tensor | None = None,
        *,
        states: torch.Tensor | None = None,
        pixels: torch.Tensor | None = None,
        domains: Domains | None = None,
        model: TowerModel | None = None,
    ) -> None:
        self.features, self.labels, self.patches = features, labels, patches
        self.states, self.pixels, self.model = states, pixels, model
        known = domains or Domains(torch.zeros(len(labels), dtype=torch.long), ("train",))
        self.domains, self.domain_names = known.numbers.to(labels.device), known.names

    def holds(self, needs: frozenset[Need]) -> bool:
        """Whether all needed kinds are cached."""
        kinds = {Need.PATCHES: self.patches, Need.STATES: self.states, Need.PIXELS: self.pixels}
        return all(kinds[need] is not None for need in needs & kinds.keys())

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> TrainBatch:
        """One of the V views of each image, drawn by `generator`."""
        views = torch.randint(self.features.shape[1], indices.shape, generator=generator)
        device = self.labels.device
        features = self.features[indices, views].to(device)

        def wide(kept: torch.Tensor | None) -> torch.Tensor | None:
            return None if kept is None else kept[indices, views].to(device).to(features.dtype)

        pixels = None
        if self.pixels is not None and self.model is not None:
            pixels = normalise(self.model, self.pixels[indices, views]).to(device)
        where = indices.to(device)
        return TrainBatch(
            features,
            wide(self.patches),
            wide(self.states),
            pixels,
            self.domains[where],
            labels=self.labels[where],
            indices=indices,
            frozen=features,
        )

    def take(self, rows: Sequence[int], labels: Sequence[int]) -> CachedViews:
        """Some of the images, under these labels."""
        chosen = torch.as_tensor(rows, dtype=torch.long)

        def part(kept: torch.Tensor | None) -> torch.Tensor | None:
            return None if kept is None else kept[chosen.to(kept.device)]

        features = part(self.features)
        assert features is not None
        return CachedViews(
            features,
            torch.tensor(labels, dtype=torch.long, device=self.labels.device),
            part(self.patches),
            states=part(self.states),
            pixels=part(self.pixels),
            domains=Domains(self.domains[chosen.to(self.domains.device)], self.domain_names),
            model=self.model,
        )

    def mean_features(self) -> torch.Tensor:
        """Unit mean over the views (N, D)."""
        return torch.nn.functional.normalize(self.features.mean(dim=1), dim=-1).to(self.labels.device)


class LiveViews:
    """A new view of each image in every step, encoded on demand."""

    def __init__(
        self, model: TowerModel, items: Sequence[ImageItem], labels: torch.Tensor, seed: int, *, needs: frozenset[Need]
    ) -> None:
        self.model, self.items, self.seed, self.needs = model, list(items), seed, needs
        self.labels = labels.to(model.device)
        known = Domains.of(items)
        self.domains, self.domain_names = known.numbers.to(model.device), known.names

    def holds(self, needs: frozenset[Need]) -> bool:
        """Only requested views are encoded."""
        return needs <= self.needs | {Need.FEATURES, Need.DOMAINS}

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> TrainBatch:
        """The view of image i in an epoch depends only on seed, epoch and i, so a resumed run gets the same."""
        chosen = indices.tolist()
        seeds = [(self.seed, epoch, i) for i in chosen]
        views = np.stack(list(view_pixels(self.model, [self.items[i] for i in chosen], seeds)))
        pixels = normalise(self.model, torch.from_numpy(views)).to(self.model.device)
        encoded = encode(self.model, pixels, self.needs)
        where = indices.to(self.labels.device)
        return TrainBatch(
            encoded["features"],
            encoded.get("patches"),
            encoded.get("states"),
            pixels if Need.PIXELS in self.needs else None,
            self.domains[where],
            labels=self.labels[where],
            indices=indices,
            frozen=encoded["features"],
        )

    def mean_features(self) -> torch.Tensor:
        """Unit features of the test view (N, D)."""
        return torch.from_numpy(self.model.encode_images(self.items)).to(self.labels.device)


@dataclass(frozen=True)
class Validation:
    """Held-out images under the test view and their classes, encoded by the frozen model.

    With `model`, images are encoded again whenever pixels are requested: for methods that prompt the image tower, whose
    features change during training.
    """

    features: torch.Tensor
    labels: torch.Tensor
    patches: torch.Tensor | None = None
    states: torch.Tensor | None = None
    images: Sequence[ImageItem] = ()
    model: TowerModel | None = field(default=None, repr=False)
    identity: str = ""

    def holds(self, needs: frozenset[Need]) -> bool:
        """Whether all needed kinds are available."""
        kinds = {Need.PATCHES: self.patches, Need.STATES: self.states, Need.PIXELS: self.model}
        return all(kinds[need] is not None for need in needs & kinds.keys())

    def batches(self, needs: frozenset[Need]) -> Iterator[Inputs]:
        """The needed data of all images, in small parts if it is more than features."""
        if not needs & OF_IMAGES:
            yield Inputs(self.features)
            return
        for start in range(0, len(self.labels), VALIDATION_BATCH):
            rows = slice(start, start + VALIDATION_BATCH)
            if Need.PIXELS in needs:
                assert self.model is not None
                items = self.images[rows]
                (batch,) = self.model.stream(list(items), batch_size=len(items))
                assert batch.pixels is not None
                yield Inputs(pixels=batch.pixels.to(self.model.device))
                continue
            patches, states = (
                None if kept is None or kind not in needs else kept[rows].to(self.labels.device)
                for kind, kept in ((Need.PATCHES, self.patches), (Need.STATES, self.states))
            )
            yield Inputs(self.features[rows], patches, states)


def encode_views(
    model: TowerModel,
    items: Sequence[ImageItem],
    views: int | Literal["test"],
    seed: int,
    needs: frozenset[Need] = frozenset(),
    progress: Progress | None = None,
    *,
    full_precision: bool = False,
) -> Tensors:
    """`views` random views of each image, (N, V, …), or its test view, (N, 1, …); pixels are the views as bytes.

    View v of image i depends only on seed, v and i. Patches and patch states are stored in half precision, unless
    `full_precision`. Raises `UnreadableImagesError` after all have been tried, so every unreadable image is listed at
    once.
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
        pixels = view_pixels(model, [item for item, _ in some], [seeds for _, seeds in some], unreadable)
        arrays = list(pixels)
        if not unreadable:
            raw = torch.from_numpy(np.stack(arrays))
            tensors = encode(model, normalise(model, raw).to(model.device), needs)
            for name, tensor in tensors.items():
                tensors[name] = tensor.float() if name == "features" or full_precision else tensor.half()
            if Need.PIXELS in needs:
                tensors["pixels"] = raw
            if not kept:
                _refuse_beyond_memory(len(jobs), tensors)
            for name, tensor in tensors.items():
                kept.setdefault(name, []).append(tensor.cpu())
        if progress is not None:
            progress(start + len(some), len(jobs))
    if unreadable:
        raise UnreadableImagesError(unreadable.values())
    stacked = {name: torch.cat(parts) for name, parts in kept.items()}
    return {name: flat.view(len(items), count, *flat.shape[1:]) for name, flat in stacked.items()}


def encode(model: TowerModel, pixels: torch.Tensor, needs: frozenset[Need]) -> Tensors:
    """Features of preprocessed pixels, with patches or patch states if they are needed."""
    # no_grad, not inference_mode: the features take part in training.
    with torch.no_grad():
        if Need.STATES in needs and model.vision is not None:
            outputs = model.vision.run(pixels, patches=Need.PATCHES in needs, hidden=True)
            found = {"features": outputs.features, "patches": outputs.patches, "states": outputs.hidden}
            return {name: tensor for name, tensor in found.items() if tensor is not None}
        if needs & {Need.PATCHES, Need.STATES}:
            features, patches = model.image_and_patch_features(pixels)
            # A tower without patch states gives its patch features instead.
            return {"features": features, "patches": patches} | ({"states": patches} if Need.STATES in needs else {})
        return {"features": model.image_features(pixels)}


def random_view(image: Image.Image, preprocessing: Preprocessing, rng: np.random.Generator) -> Image.Image:
    """A random crop of `image`, resized to the model's input size with bicubic interpolation, perhaps flipped."""
    left, top, width, height = random_box(image.width, image.height, rng)
    side = preprocessing.crop
    cropped = image.crop((left, top, left + width, top + height))
    view = resized(cropped, (side, side), Image.Resampling.BICUBIC)
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else view


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width, height of a crop with a random share `AREA` of the image and aspect ratio within `RATIO`.

    Ten attempts; if none fits (a very long image), the largest centred crop with an allowed ratio.
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
    """One view (3, S, S) per item, as bytes: random, or the test view without a seed.

    Unreadable images are added to `unreadable`, or are an error.
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
    """Bytes (N, 3, S, S) -> the input of the image tower: (x/255 − mean)/std, as `Preprocessing.normalise` does."""
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1) for values in (model.preprocessing.mean, model.preprocessing.std)
    )
    return pixels.float().div_(255).sub_(mean).div_(std)


def _refuse_beyond_memory(count: int, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse a cache of more than half of the machine's memory."""
    needed = count * sum(tensor[0].numel() * tensor.element_size() for tensor in tensors.values())
    if needed > memory_of(torch.device("cpu")) / 2:
        raise InputError(
            f"{count} cached views ({', '.join(tensors)}) would take {needed / 2**30:.1f} GB of memory. "
            "Use fewer views (views=2), or views='live'."
        )
