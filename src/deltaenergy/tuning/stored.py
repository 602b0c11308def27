"""Training and validation images that were encoded before: rows of an array with labels, or images of a feature store.

    train = LabelledFeatures(features, labels)          # (N, D) unit features, and the class of each row
    tune(model, classes, train, "task-res")             # or train = "photos.store"

They serve every method that looks at features alone. There is one view of each image.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from deltaenergy.core.needs import Need
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.models.base import Model, TowerModel
from deltaenergy.models.features import check_features, is_feature_array, native_array
from deltaenergy.store.store import FeatureStore, StoredImage
from deltaenergy.tuning.views import EncodedViews


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """Unit image features with their classes, as a database of embeddings holds them. Nothing is copied.

    Attributes:
        features: (N, D), an array (perhaps memory-mapped) or tensor.
        labels: for each row a class name, or the position of its class in the class list.
        domains: for each row the style or source it comes from, where that is known.
    """

    features: Any
    labels: Sequence[str] | Sequence[int]
    domains: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not is_feature_array(self.features):
            shown = getattr(self.features, "shape", None) or type(self.features).__name__
            raise InputError(f"features must be a float array or tensor with one row per image, (N, D), got {shown}.")
        for name in ("labels", "domains"):
            given = getattr(self, name)
            if given is None and name == "domains":
                continue
            values = given.tolist() if hasattr(given, "tolist") else list(given)
            if len(values) != len(self.features):
                raise InputError(f"{name} has {len(values)} entries for {len(self.features)} rows of features.")
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        return f"LabelledFeatures({len(self)} rows of {self.features.shape[1]})"

    def __len__(self) -> int:
        return len(self.labels)

    def items(self, classes: Sequence[str]) -> list[ImageItem]:
        """One item per row."""
        domains: Sequence[str | None] = self.domains or [None] * len(self)
        return [
            ImageItem(f"row {row}", FeatureRow(self, row), _class_name(label, row, classes), _domain(domain, row))
            for row, (label, domain) in enumerate(zip(self.labels, domains))
        ]

    def take(self, rows: Sequence[int]) -> torch.Tensor:
        """Some rows, as a copy."""
        if isinstance(self.features, torch.Tensor):
            return self.features[list(rows)].detach().cpu()
        return torch.from_numpy(native_array(np.array(self.features[list(rows)])))


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRow:
    """As an image source: a row of features, of which there is no picture."""

    features: LabelledFeatures
    row: int

    def __call__(self) -> NoReturn:
        """There is nothing to open."""
        raise UnreadableImage("it is a row of features, not a picture")


def is_stored(items: Sequence[ImageItem]) -> bool:
    """Whether the features of all these images were computed before; a mixture with pictures is an error."""
    stored = [isinstance(item.source, (StoredImage, FeatureRow)) for item in items]
    if any(stored) and not all(stored):
        raise InputError("images mixes stored features with pictures: add the pictures to the store, or leave one out.")
    return any(stored)


def has_no_pictures(model: Model, items: Sequence[ImageItem]) -> bool:
    """Whether the images are to be taken as an array: rows of features, or stored ones of a model without a tower."""
    if not is_stored(items):
        return False
    return not isinstance(model, TowerModel) or any(isinstance(item.source, FeatureRow) for item in items)


def read_stored(model: Model, items: Sequence[ImageItem], needs: frozenset[Need], who: str) -> EncodedViews:
    """What is stored of some images, after a check that this model made it and that `who` needs no more.

    Raises `UnreadableImagesError` with all images of which a store has no features.
    """
    sources = [item.source for item in items]
    absent = [
        Unreadable(item.id, item.source.reason)
        for item in items
        if isinstance(item.source, StoredImage) and item.source.row is None
    ]
    if absent:
        raise UnreadableImagesError(absent)
    features = torch.empty(len(items), model.feature_dim)
    patches: dict[int, torch.Tensor] = {}
    for place in {id(source): source for source in map(_place, sources)}.values():
        positions = [i for i, source in enumerate(sources) if _place(source) is place]
        rows = [_row(sources[i]) for i in positions]
        _check_needs(place, model, needs, who)
        if isinstance(place, LabelledFeatures):
            features[positions] = check_features(place.take(rows), model, rows=rows)
            continue
        features[positions] = torch.tensor(place.take(rows))
        if Need.PATCHES in needs:
            patches.update(zip(positions, torch.tensor(place.take_patches(rows)).half()))
    return EncodedViews(features, torch.stack([patches[i] for i in range(len(items))]) if patches else None)


def known_as(item: ImageItem) -> object | None:
    """What two items of the same file, or of the same stored row, have in common; None if that cannot be told."""
    if item.path is not None:
        return os.path.realpath(item.path)
    if isinstance(item.source, StoredImage):
        return os.path.realpath(item.source.store.path), item.id
    if isinstance(item.source, FeatureRow):
        return id(item.source.features.features), item.source.row
    return None


def _check_needs(place: FeatureStore | LabelledFeatures, model: Model, needs: frozenset[Need], who: str) -> None:
    holds = {Need.FEATURES, Need.DOMAINS}
    name = "LabelledFeatures"
    if isinstance(place, FeatureStore):
        place.check_model(model)
        name = str(place.path)
        if place.has_patches:
            holds.add(Need.PATCHES)
    lacking = sorted(need.value for need in needs - holds)
    if lacking:
        raise InputError(
            f"{who} looks at {', '.join(lacking)} of its images, and {name} holds features alone: give it the images "
            "themselves, or use a method that needs no more than features."
        )


def _place(source: Any) -> FeatureStore | LabelledFeatures:
    place: FeatureStore | LabelledFeatures = source.store if isinstance(source, StoredImage) else source.features
    return place


def _row(source: Any) -> int:
    row: int = source.row
    return row


def _class_name(label: Any, row: int, classes: Sequence[str]) -> str:
    if isinstance(label, str):
        return label
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(classes):
            return classes[label]
        there_are = f"there are {len(classes)} classes" if classes else "no class list is given"
        raise InputError(f"labels[{row}] is {label}, a position in the class list, counted from 0, but {there_are}.")
    raise InputError(f"labels[{row}] is {label!r}: give a class name, or the position of the class in the class list.")


def _domain(domain: Any, row: int) -> str | None:
    if domain is None or isinstance(domain, str):
        return domain
    raise InputError(f"domains[{row}] is {domain!r}, not a name.")
