"""Open a feature store of 10⁶ images × 512 features, and read 10⁵ of them, against plain arrays.

Reading is a sum over the features of an open store, shard by shard. Its peer is the sum over the same array in memory,
which runs at the memory's own speed; the store's pages are in the system's cache. Goal: ≤ 1.25 times as long. A process
of its own opens the large store: CPU time per image of opening it and of its index, and the memory that the index takes
(RssAnon: mapped pages can be dropped at any time).

    python bench/store_throughput.py [images of the large store, 1000000 by default]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from deltaenergy.store.store import Store
from random_store import write_store
from timing import alternate, report

IMAGES = 100_000
MODEL = {"name": "random", "fingerprint": "random"}


def private_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1])


def open_once(path: str, small: str) -> None:
    """Print the seconds and bytes per image that it takes to open a store, and to read its index."""
    assert len(Store.open(small).index)  # what is imported on the way does not count
    bytes_before, began = private_bytes(), time.process_time()
    store = Store.open(path)
    opened = time.process_time()
    images = len(store.index)
    done = time.process_time()
    each = 1e6 * (opened - began) / images, 1e6 * (done - opened) / images, (private_bytes() - bytes_before) / images
    print(f"{images:,} images: open {each[0]:.2f} µs, index {each[1]:.2f} µs and {each[2]:.0f} bytes per image")


def main(images: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = write_store(Path(name) / "store", IMAGES, model=MODEL)
        large = write_store(Path(name) / "large", images, model=MODEL)
        store = Store.open(path)
        plain = np.array(store.features())

        def from_store() -> float:
            return float(sum(shard.features.sum() for shard in store.shards()))

        opened = alternate(from_store, plain.sum)
        subprocess.run([sys.executable, __file__, str(large), str(path)], check=True)
    report(f"sum over an open store / sum over an array, {plain.nbytes / 1e6:.0f} MB", opened, "time", goal="≤ 1.25")
    gigabytes = plain.nbytes / 1e9
    print(
        f"  {gigabytes / min(opened.ours):.1f} GB/s from the store, {gigabytes / min(opened.peer):.1f} GB/s from memory"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        open_once(*sys.argv[1:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 1_000_000)
