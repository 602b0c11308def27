"""Features of single lines of a feature store's index, for engines that read the index as a table.

A line says where its features are: shard and row. It may also share the picture of another line, or have been replaced
by a later one of the same image: then the whole index is read, once, to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.store.folder import place_at
from deltaenergy.store.plan import read_present
from deltaenergy.store.shards import Shard, map_array, read_shards
from deltaenergy.store.store import latest_entries
from deltaenergy.store.store_pass import pass_over

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.base import Model

    Row = tuple[int, int]


class StoreRows:
    """The features of a store by shard and row, read when they are asked for.

    What `FeatureStore.open` checks is checked, and that `model` made the features.
    """

    def __init__(self, store: str | Path, model: Model, *, patches: bool) -> None:
        self.place = place_at(store)
        self.kinds = ("features", "patches") if patches else ("features",)
        in_order = pass_over(store, model, patches=patches, size=1)
        manifest = read_present(self.place)
        self._record = manifest.record
        if in_order is None:
            shards = read_shards(self.place, manifest)
            entries, places = latest_entries(shards)
            numbers = [shard.number for shard in shards]
            found = [None if place is None else (numbers[place[0]], place[1]) for place in places]
            # The shard of each image's latest line, and where its features are.
            owners = {entry.id: shard.number for shard in shards for entry in shard.entries}
            self._latest: dict[str, tuple[int, Row | None]] | None = {
                entry.id: (owners[entry.id], place) for entry, place in zip(entries, found)
            }
        else:
            shards = [Shard(record, []) for record in manifest.shards]
            self._latest = None
        self._shards = {shard.number: shard for shard in shards}
        self._arrays: dict[tuple[int, str], npt.NDArray[Any]] = {}

    def counts(self, image: str, shard: int) -> bool:
        """Whether the line of an image in this shard is its latest, and was not withdrawn."""
        return self._latest is None or (image in self._latest and self._latest[image][0] == shard)

    def find(self, image: str, shard: int, row: int | None) -> Row | None:
        """Where the features of a line that counts are, or None if there are none."""
        if row is not None:
            return shard, row
        return None if self._latest is None else self._latest[image][1]

    def take(self, kind: str, places: Sequence[Row]) -> npt.NDArray[np.float32]:
        """The `features` or `patches` at these places."""
        numbers, rows = (np.array(column, np.int64) for column in zip(*places))
        parts = {int(number): self._array(int(number), kind) for number in np.unique(numbers)}
        result = np.empty((len(places), *next(iter(parts.values())).shape[1:]), np.float32)
        for number, array in parts.items():
            of_shard = numbers == number
            if rows[of_shard].max() >= len(array) or rows[of_shard].min() < 0:
                raise ArtifactError(
                    f"{self.place}: shard {number} has {len(array)} rows, and row {rows.max()} is asked."
                )
            result[of_shard] = array[rows[of_shard]]
        return result

    def _array(self, number: int, kind: str) -> npt.NDArray[Any]:
        if number not in self._shards:
            raise InputError(f"{self.place} has no shard {number}: the lines are of another store. Give theirs.")
        key = (number, kind)
        if key not in self._arrays:
            self._arrays[key] = map_array(self.place, self._shards[number], kind, self._record)
        return self._arrays[key]
