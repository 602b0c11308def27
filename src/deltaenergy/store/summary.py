"""What a store holds, in numbers, and the images that could not be read: without an object for each of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deltaenergy.data.items import Unreadable
from deltaenergy.data.streams import SeenHashes
from deltaenergy.store.folder import place_at
from deltaenergy.store.plan import read_present
from deltaenergy.store.shards import read_shard
from deltaenergy.store.store import FeatureStore


@dataclass(frozen=True)
class StoreSummary:
    """A store in numbers: `images` is how many have features."""

    path: Path | str
    model: dict[str, Any]
    images: int
    has_patches: bool
    unreadable: list[Unreadable]


def summarise(path: str | Path) -> StoreSummary:
    """Go through the indices, one shard at a time."""
    place = place_at(path)
    manifest = read_present(place)
    record = manifest.record
    images, unreadable, seen = 0, [], SeenHashes()
    copies: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    repeated = False
    for shard_record in manifest.shards:
        entries = read_shard(place, shard_record).entries
        hashes = np.fromiter((hash(entry.id) for entry in entries), np.int64, len(entries))
        repeated |= bool(seen.has(hashes).any())
        seen.add(hashes)
        for entry in entries:
            if entry.error is not None:
                unreadable.append(Unreadable(entry.id, entry.error))
                if entry.content is not None:
                    failed[entry.content] = entry.error
            elif entry.row is None and entry.content is not None:
                copies.setdefault(entry.content, []).append(entry.id)
            images += entry.error is None
    if repeated:  # an image that came again counts once, which takes all names to tell
        store = FeatureStore.open(path)
        return StoreSummary(place.path, record.model, len(store), record.patches, store.unreadable)
    for content in copies.keys() & failed.keys():
        unreadable += [Unreadable(identity, failed[content]) for identity in copies[content]]
        images -= len(copies[content])
    return StoreSummary(place.path, record.model, images, record.patches, unreadable)
