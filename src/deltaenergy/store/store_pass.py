"""One pass over a feature store, shard by shard: memory does not grow with the number of its images.

`FeatureStore` holds the index of all images, a few hundred bytes each. A pass in order needs one shard's index at a
time, unless an image was replaced, or shares its picture with another: then places must be looked up, and there is no
such pass.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from deltaenergy.core.arrays import GrowingArray
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.store.encoder import Describes
from deltaenergy.store.folder import Place, place_at
from deltaenergy.store.manifest import Manifest, ShardRecord, is_store
from deltaenergy.store.plan import read_present
from deltaenergy.store.shards import check_sizes, map_array, read_shard
from deltaenergy.store.store import check_same_model, no_patches

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class StoredPart:
    """Some images of a store with copies of their features, and those met on the way that have none."""

    items: list[ImageItem]
    features: npt.NDArray[np.float32]
    patches: npt.NDArray[np.float32] | None
    unreadable: list[Unreadable]


@dataclass(frozen=True)
class StorePass:
    """A store that can be gone through in order. Iterating reads it; `images` is how many it tells of."""

    place: Place
    manifest: Manifest
    patches: bool
    size: int

    @property
    def images(self) -> int:
        """How many images the store tells of."""
        return sum(record.images for record in self.manifest.shards)

    def __iter__(self) -> Iterator[StoredPart]:
        for record in self.manifest.shards:
            yield from self._parts(record)

    def _parts(self, record: ShardRecord) -> Iterator[StoredPart]:
        """One shard, at most `size` images at a time; its files are unmapped when they were read."""
        shard = read_shard(self.place, record)
        arrays = {
            kind: map_array(self.place, shard, kind, self.manifest.record)
            for kind in (("features", "patches") if self.patches else ("features",))
        }
        picture = functools.partial(_no_picture, self.place)
        for start in range(0, len(shard.entries), self.size):
            entries = shard.entries[start : start + self.size]
            rows = [entry.row for entry in entries if entry.row is not None]
            taken = {kind: array[rows].astype(np.float32) for kind, array in arrays.items()}
            yield StoredPart(
                [ImageItem(e.id, picture, e.label, e.domain) for e in entries if e.row is not None],
                taken["features"],
                taken.get("patches"),
                [Unreadable(entry.id, entry.error or "") for entry in entries if entry.row is None],
            )


def names_a_store(images: object) -> bool:
    """Whether `images` is the path of a feature store."""
    return isinstance(images, (str, Path)) and is_store(images)


def pass_over(path: str | Path, model: Describes, *, patches: bool, size: int) -> StorePass | None:
    """The store at `path`, to be gone through in order, or None if its images are not in order.

    What `FeatureStore.open` checks is checked, and that `model` made the features.
    """
    place = place_at(path)
    manifest = read_present(place)
    check_same_model(place, manifest.record.model, model)
    if patches and not manifest.record.patches:
        raise no_patches(place)
    for record in manifest.shards:
        check_sizes(place, record)
    if not _in_order(place, manifest.shards):
        return None
    found = StorePass(place, manifest, patches, size)
    if not manifest.record.complete:
        warnings.warn(
            f"{place} is not finished: it holds {found.images} images so far. "
            "Run `deltaenergy features` again with the same images to go on.",
            stacklevel=3,
        )
    return found


def _in_order(place: Place, shards: list[ShardRecord]) -> bool:
    """Whether every image stands once, with its own features or the reason why it has none.

    Of each id eight bytes are remembered; two that are equal by chance cost memory, not correctness.
    """
    hashes = GrowingArray(np.int64, expected=sum(record.images for record in shards))
    for record in shards:
        entries = read_shard(place, record).entries
        if any(entry.row is None and entry.error is None for entry in entries):
            return False
        hashes.add(np.array([hash(entry.id) for entry in entries], np.int64))
    together = hashes.finish()
    together.sort()
    return not bool((together[1:] == together[:-1]).any())


def _no_picture(place: Place) -> NoReturn:
    """As an image source: the picture itself is not in the store."""
    raise UnreadableImage(f"{place} holds its features, not the picture")
