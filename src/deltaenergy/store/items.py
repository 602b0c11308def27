"""The images of a store without an object for each: they are looked up on demand.

An evaluation of a million images needs the scores, classes and labels of them all, some dozens of bytes each, but the
names of a few.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from deltaenergy.core.arrays import GrowingArray
from deltaenergy.data.items import ImageItem

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.store.store import Store


class StoredItems(Sequence[ImageItem]):
    """The images of a store that have features, in order.

    Attributes:
        store: the store.
        label_names: the labels that occur, in order of first appearance.
        label_codes: for each image the position of its label there, −1 where it has none.
        unreadable: how many images of the store have no features.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._last: tuple[int, list[ImageItem]] | None = None
        codes: dict[str, int] = {}
        found, hashes = (GrowingArray(kind, expected=len(store)) for kind in (np.int32, np.int64))
        self._ends: list[int] = []
        end = 0
        for shard in range(len(store.manifest.shards)):
            items = store.shard_items(shard)
            for item in items:
                if item.label is not None:
                    codes.setdefault(item.label, len(codes))
            found.add(np.array([-1 if item.label is None else codes[item.label] for item in items], np.int32))
            hashes.add(np.array([hash(item.id) for item in items], np.int64))
            end += len(items)
            self._ends.append(end)
        self.unreadable = len(store) - end
        self.label_names = list(codes)
        self.label_codes: npt.NDArray[np.int32] = found.finish()
        self._hashes: npt.NDArray[np.int64] | None = hashes.finish()

    def release_hashes(self) -> npt.NDArray[np.int64]:
        """The hash of each image's id, to see whether another set has an image of that name. They are given once."""
        hashes, self._hashes = self._hashes, None
        if hashes is None:
            raise RuntimeError("the hashes are gone already")
        return hashes

    def __len__(self) -> int:
        return len(self.label_codes)

    @overload
    def __getitem__(self, index: int) -> ImageItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[ImageItem]: ...
    def __getitem__(self, index: int | slice) -> ImageItem | list[ImageItem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # also counts from the end, and raises if it is out of range
        shard = bisect.bisect_right(self._ends, row)
        if self._last is None or self._last[0] != shard:
            self._last = shard, self.store.shard_items(shard)
        return self._last[1][row - (self._ends[shard - 1] if shard else 0)]

    def __iter__(self) -> Iterator[ImageItem]:
        return self.store.readable_items()
