"""Before a feature store is filled: which of its shards are as they were written, and which must be encoded again.

A damaged shard is given up only if every image that it told of is among those given now: nothing is dropped unseen.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deltaenergy.data.items import ImageItem
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings
from deltaenergy.store.folder import Place
from deltaenergy.store.manifest import Manifest, ShardRecord
from deltaenergy.store.shards import Shard, damaged_files, part_name, read_shard


@dataclass(frozen=True)
class Inspection:
    """The shards whose bytes are as they were written, and the records of the others."""

    sound: list[Shard]
    damaged: list[ShardRecord]


def inspect(place: Place, manifest: Manifest, items: Iterable[ImageItem]) -> Inspection:
    """Read every byte of the store. Damage is a warning if `items` make up for it, else an `ArtifactError`."""
    records = manifest.shards
    shards = [_shard_or_none(place, record) for record in records]
    sound: list[Shard] = []
    damaged: list[ShardRecord] = []
    nameless: list[ShardRecord] = []
    lost: dict[str, list[str]] = {}
    for record, shard in zip(records, shards):
        names = damaged_files(place, record)
        if shard is not None and not names:
            sound.append(shard)
            continue
        if shard is None:
            nameless.append(record)
        else:
            lost[names[0]] = [entry.id for entry in shard.entries]
        damaged.append(record)
    if damaged:
        given = [item.id for item in items]
        for name, ids in lost.items():
            _check_given(place, name, ids, set(given))
        elsewhere = {entry.id for shard in shards if shard is not None for entry in shard.entries}
        _check_nameless(place, nameless, [identity for identity in given if identity not in elsewhere])
    for record in damaged:
        warnings.warn(
            f"{place}: shard {record.number:05d} is damaged; its {record.images} images are encoded again.",
            stacklevel=3,
        )
    return Inspection(sound, damaged)


def _shard_or_none(place: Place, record: ShardRecord) -> Shard | None:
    """The shard, or None if its index is damaged, and with it the names of its images."""
    try:
        return read_shard(place, record)
    except ArtifactError:
        return None


def _check_given(place: Place, name: str, ids: list[str], given: set[str]) -> None:
    lost = [identity for identity in ids if identity not in given]
    if lost:
        raise ArtifactError(
            f"{place}: {name} is damaged, and {len(lost)} of its images are not among those given now, the first "
            f"is {lost[0]}. Give them too, so that they can be encoded again, or make a new store."
        )


def _check_nameless(place: Place, records: Sequence[ShardRecord], ids: Sequence[str]) -> None:
    """The images of shards without an index must be the first of `ids`, in order: the manifest has a hash of them."""
    start = 0
    for record in records:
        if hash_strings(ids[start : start + record.images]) != record.ids:
            raise ArtifactError(
                f"{place.where(part_name(record.number, 'index'))} is damaged, and the {record.images} images that it "
                "names are not those given now. Give exactly the images that the store was made from, in the same "
                "order, so that they can be encoded again, or make a new store."
            )
        start += record.images
