"""A store for functions that take `ImageItem`s, and for those that go through it in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.store.shard import is_store

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.store.store import Describes, Store


@dataclass(frozen=True, slots=True, eq=False)
class StoredImage:
    """An image whose features are in row `row` of a store; None if it could not be read, because of `error`."""

    store: Store
    row: int | None
    error: str | None = None

    @property
    def reason(self) -> str:
        """Why there is no image to open."""
        return self.error or f"{self.store.path} has its features, not the image"

    def __call__(self) -> NoReturn:
        """As an image source: the image itself is not in the store."""
        raise UnreadableImage(self.reason)


def stored_items(store: Store, rows: Sequence[int]) -> list[ImageItem]:
    """An item for each of these rows."""
    index = store.index.take(np.asarray(rows, np.int64))
    columns = (index[name].to_pylist() for name in ("id", "label", "domain", "error"))
    return [
        ImageItem(name, StoredImage(store, row if error is None else None, error), label, domain)
        for row, name, label, domain, error in zip(rows, *columns)
    ]


@dataclass(frozen=True)
class StoredPart:
    """Some images of a store with their features, and those met on the way that have none."""

    items: list[ImageItem]
    features: npt.NDArray[np.float32]
    patches: npt.NDArray[np.float32] | None
    unreadable: list[Unreadable]


@dataclass(frozen=True)
class StorePass:
    """A store that is gone through in order, `size` rows at a time; of all its shards, or of those at `positions`."""

    store: Store
    patches: bool
    size: int
    positions: Sequence[int]

    @property
    def images(self) -> int:
        """How many images there are."""
        return sum(self.store.manifest.shards[position].images for position in self.positions)

    def __iter__(self) -> Iterator[StoredPart]:
        for position in self.positions:
            yield from self.parts(position)

    def parts(self, position: int) -> Iterator[StoredPart]:
        """One shard."""
        shard = self.store.shard(position, patches=self.patches)
        picture = StoredImage(self.store, None)
        columns = (shard.index[name].to_pylist() for name in ("id", "label", "domain"))
        items = [ImageItem(name, picture, label, domain) for name, label, domain in zip(*columns)]
        for start in range(0, max(len(items), 1), self.size):
            rows = slice(start, start + self.size)
            patches = None if shard.patches is None else shard.patches[rows].copy()
            unreadable = [] if start else shard.unreadable
            yield StoredPart(items[rows], shard.features[rows].copy(), patches, unreadable)


def names_a_store(images: object) -> bool:
    """Whether `images` is the path of a feature store."""
    return isinstance(images, (str, Path)) and is_store(images)


def pass_over(path: str | Path, model: Describes | None, *, patches: bool, size: int) -> StorePass:
    """The store at `path`, to be gone through in order; `model` must have made it."""
    from deltaenergy.store.store import Store, no_patches

    store = Store.open(path, model)
    if patches and not store.has_patches:
        raise no_patches(path)
    return StorePass(store, patches, size, range(len(store.manifest.shards)))
