"""Training images by need: random views as features, patches, patch states or pixels, with classes and domains.

The view is CoOp's: a crop of 8–100 % of the area and aspect ratio 3/4–4/3, resized with bicubic interpolation, and
flipped half the time. With V cached views per image, an epoch costs no frozen tower at all; each step draws one of
the V views of each of its images. Methods that train through the image tower get the views' pixels, kept as bytes.
`LiveViews` draws a fresh crop every time, as CoOp does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from deltaenergy.classifiers.base import Inputs, TrainBatch
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.models.base import TowerModel
from deltaenergy.tuning.views import encode, normalise, view_pixels

# Images of a validation batch that pass through a prompted tower, or whose patches are compared, together.
VALIDATION_BATCH = 32


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
        patches: unit patch features (N, V, P, D), kept in half precision, for methods that look at patches.
        states: patch states (N, V, P, H) before the projection, in half precision.
        pixels: views (N, V, 3, S, S) as bytes, for methods that train through the image tower.
        domains: of the images; one if not given.
        model: whose preprocessing turns bytes into what its tower takes; needed with `pixels`.
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
        """Whether every cached kind that is needed is there."""
        kinds = {Need.PATCHES: self.patches, Need.STATES: self.states, Need.PIXELS: self.pixels}
        return all(kinds.get(need, self.features) is not None for need in needs)

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
    """A fresh view of each image in every step, encoded on the spot."""

    def __init__(
        self, model: TowerModel, items: Sequence[ImageItem], labels: torch.Tensor, seed: int, *, needs: frozenset[Need]
    ) -> None:
        self.model, self.items, self.seed, self.needs = model, list(items), seed, needs
        self.labels = labels.to(model.device)
        known = Domains.of(items)
        self.domains, self.domain_names = known.numbers.to(model.device), known.names

    def holds(self, needs: frozenset[Need]) -> bool:
        """Views that were not asked for are not encoded."""
        return needs <= self.needs | {Need.FEATURES, Need.DOMAINS}

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> TrainBatch:
        """The view of image i in an epoch depends on seed, epoch and i alone, so that a resumed run sees the same."""
        chosen = indices.tolist()
        seeds = [(self.seed, epoch, i) for i in chosen]
        views = np.stack(list(view_pixels(self.model, [self.items[i] for i in chosen], seeds)))
        pixels = normalise(self.model, torch.from_numpy(views)).to(self.model.device)
        found = encode(self.model, pixels, self.needs)
        where = indices.to(self.labels.device)
        return TrainBatch(
            found.features,
            found.patches,
            found.states,
            pixels if Need.PIXELS in self.needs else None,
            self.domains[where],
            labels=self.labels[where],
            indices=indices,
            frozen=found.features,
        )

    def mean_features(self) -> torch.Tensor:
        """Unit features of the test view (N, D)."""
        return torch.from_numpy(self.model.encode_images(self.items)).to(self.labels.device)


@dataclass(frozen=True)
class Validation:
    """Held-out images under the test view and their classes: what the frozen model makes of them.

    With `model`, the images pass through a tower again whenever pixels are asked for: for methods that prompt the image
    tower, whose features change as they are trained.
    """

    features: torch.Tensor
    labels: torch.Tensor
    patches: torch.Tensor | None = None
    states: torch.Tensor | None = None
    images: Sequence[ImageItem] = ()
    model: TowerModel | None = field(default=None, repr=False)
    identity: str = ""

    def holds(self, needs: frozenset[Need]) -> bool:
        kinds = {Need.PATCHES: self.patches, Need.STATES: self.states, Need.PIXELS: self.model}
        return all(kinds.get(need, self.features) is not None for need in needs)

    def batches(self, needs: frozenset[Need]) -> Iterator[Inputs]:
        """What is needed of all of them, in small parts if that is more than a feature of each."""
        of_image = needs & {Need.PATCHES, Need.STATES, Need.PIXELS}
        if not of_image:
            yield Inputs(self.features)
            return
        for start in range(0, len(self.labels), VALIDATION_BATCH):
            rows = slice(start, start + VALIDATION_BATCH)
            if Need.PIXELS in needs:
                assert self.model is not None
                yield Inputs(pixels=test_pixels(self.model, self.images[rows]).to(self.model.device))
                continue
            patches, states = (
                None if kept is None or kind not in needs else kept[rows].to(self.labels.device)
                for kind, kept in ((Need.PATCHES, self.patches), (Need.STATES, self.states))
            )
            yield Inputs(self.features[rows], patches, states)


def test_pixels(model: TowerModel, items: Sequence[ImageItem]) -> torch.Tensor:
    """The preprocessed images (N, 3, H, W) of the test view."""
    (batch,) = model.stream(list(items), batch_size=len(items))
    assert batch.pixels is not None
    return batch.pixels
