"""The images of a feature store without an object for each: they are looked up in the store when somebody asks.

An evaluation of a million images needs the scores, classes and labels of them all, some dozens of bytes each, but the
names of a few.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from deltaenergy.core.arrays import GrowingArray
from deltaenergy.data.items import ImageItem
from deltaenergy.source import load_images
from deltaenergy.store.encoder import Describes
from deltaenergy.store.folder import place_at
from deltaenergy.store.manifest import read_manifest
from deltaenergy.store.store_pass import StorePass, names_a_store, pass_over

if TYPE_CHECKING:
    import numpy.typing as npt

# Rows of a shard that are read at once.
_PART = 1024


class StoredItems(Sequence[ImageItem]):
    """The images of a store that have features, in order.

    Attributes:
        label_names: the labels that occur, in order of first appearance.
        label_codes: for each image the position of its label there, −1 where it has none.
        unreadable: how many images of the store have no features.
    """

    def __init__(self, stored: StorePass) -> None:
        self._stored = stored
        self._last: tuple[int, list[ImageItem]] | None = None
        codes: dict[str | None, int] = {}
        found, hashes = (GrowingArray(kind, expected=stored.images) for kind in (np.int32, np.int64))
        self._ends: list[int] = []
        self.unreadable = end = 0
        for shard in range(len(stored.manifest.shards)):
            items = self._items_of(shard)
            for item in items:
                if item.label is not None:
                    codes.setdefault(item.label, len(codes))
            found.add(np.array([-1 if item.label is None else codes[item.label] for item in items], np.int32))
            hashes.add(np.array([hash(item.id) for item in items], np.int64))
            end += len(items)
            self._ends.append(end)
        self.unreadable = stored.images - end
        self.label_names = [name for name in codes if name is not None]
        self.label_codes: npt.NDArray[np.int32] = found.finish()
        self._hashes: npt.NDArray[np.int64] | None = hashes.finish()

    def release_hashes(self) -> npt.NDArray[np.int64]:
        """The hash of each image's id, to see whether another set has an image of that name. They are given once."""
        hashes, self._hashes = self._hashes, None
        if hashes is None:
            raise RuntimeError("the hashes are gone already")
        return hashes

    @classmethod
    def open(cls, images: object, model: Describes) -> StoredItems | None:
        """Those of the store at the path `images`, which `model` must have made; None if it is no such path.

        None, too, for a store whose images are not in order: then each must be looked up.
        """
        if not isinstance(images, (str, Path)) or not names_a_store(images):
            return None
        stored = pass_over(images, model, patches=False, size=_PART)
        return None if stored is None else cls(stored)

    def __len__(self) -> int:
        return len(self.label_codes)

    @overload
    def __getitem__(self, index: int) -> ImageItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ImageItem]: ...
    def __getitem__(self, index: int | slice) -> ImageItem | list[ImageItem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # counts from the end, too, and says if it is out of range
        shard = bisect.bisect_right(self._ends, row)
        if self._last is None or self._last[0] != shard:
            self._last = shard, self._items_of(shard)
        return self._last[1][row - (self._ends[shard - 1] if shard else 0)]

    def __iter__(self) -> Iterator[ImageItem]:
        for part in self._stored:
            yield from part.items

    def _items_of(self, shard: int) -> list[ImageItem]:
        manifest = self._stored.manifest
        alone = replace(self._stored, manifest=replace(manifest, shards=(manifest.shards or [])[shard : shard + 1]))
        return [item for part in alone for item in part.items]


def each_of(images: str | Path | Iterable[ImageItem]) -> Iterator[ImageItem]:
    """Images one by one: items, or those of the store at a path, whichever model made it."""
    if not isinstance(images, (str, Path)):
        return iter(images)
    with warnings.catch_warnings():  # that it is unfinished is told when it is used
        warnings.simplefilter("ignore")
        stored = pass_over(images, _Maker(images), patches=False, size=_PART)
        return iter(load_images(images)) if stored is None else (item for part in stored for item in part.items)


class _Maker(Describes):
    """The model that made a store, by what the store tells of it."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def describe(self) -> dict[str, Any]:
        return read_manifest(place_at(self._path)).record.model
