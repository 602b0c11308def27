"""Reading a feature store of 100,000 images × 512 features, beside a plain array sum over the same bytes.

The sum touches every byte once, so the peer runs at the memory's own speed. Both sides are warm: the store's pages are
in the system's cache. Goal for a store that is open: ≤ 1.25× of the peer; a store that is opened anew in each round
(index read, files mapped, pages found again) is shown beside it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from deltaenergy.store.manifest import StoreRecord, write_manifest
from deltaenergy.store.shards import Entry, write_shard

from deltaenergy.store.folder import LocalPlace
from deltaenergy.store.store import Store
from timing import alternate, report

IMAGES, DIMENSION, SHARD = 100_000, 512, 1_024


def write_store(folder: Path) -> None:
    """A store of random features, without a model."""
    rng = np.random.default_rng(0)
    model = {"name": "random", "fingerprint": "random"}
    shards = []
    for number, start in enumerate(range(0, IMAGES, SHARD)):
        rows = min(SHARD, IMAGES - start)
        ids = [f"image {start + row}" for row in range(rows)]
        entries = [Entry(name, None, None, name, name, row, None) for row, name in enumerate(ids)]
        features = rng.standard_normal((rows, DIMENSION), dtype=np.float32)
        shards.append(write_shard(LocalPlace(folder), number, entries, {"features": features}).record)
    write_manifest(LocalPlace(folder), StoreRecord(model, DIMENSION, False, "float32", SHARD, complete=True), shards)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        write_store(path)
        store = Store.open(path)
        plain = np.array(store.features)

        def read(opened: Store) -> float:
            return float(sum(block.sum() for block in opened.blocks(SHARD)))

        opened = alternate(lambda: read(store), plain.sum)
        fresh = alternate(lambda: read(Store.open(path)), plain.sum, rounds=3)
        reopened = alternate(lambda: Store.open(path), plain.sum, rounds=3)
    report(f"sum over an open store / sum over an array, {plain.nbytes / 1e6:.0f} MB", opened, "time", goal="≤ 1.25")
    gigabytes = plain.nbytes / 1e9
    print(
        f"  {gigabytes / min(opened.ours):.1f} GB/s from the store, {gigabytes / min(opened.peer):.1f} GB/s from memory"
    )
    print(
        f"  opening it (index of {IMAGES:,} images): {min(reopened.ours):.2f} s; open and read: {min(fresh.ours):.2f} s"
    )


if __name__ == "__main__":
    main()
