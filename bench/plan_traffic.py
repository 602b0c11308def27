"""What planning and committing costs as stores and workers grow: operations, bytes and time per shard, without towers.

    python bench/plan_traffic.py [largest number of images, 1000000 if left out]

A store is filled by simulated workers, each with a state of its own, on a place in memory that counts what is asked of
it. Nothing is decoded or encoded: the time is that of the plan alone. If any of it grew with the square of the images
or with the workers, the columns would rise.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from deltaenergy.data.file import RemoteFile
from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream
from deltaenergy.store import writer as store_writer
from deltaenergy.store.filling import Filled, Filler, Task
from deltaenergy.store.folder import Place

SHARD, WORKERS, DIMENSION = 64, (1, 1000), 8


class Memory(Place):
    """Files in a dictionary. It counts operations and bytes, and who lists the place pays for every name."""

    def __init__(self) -> None:
        self.path: Any = "memory"
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()

    def exists(self) -> bool:
        return True

    def has(self, name: str) -> bool:
        self.asked["looks"] += 1
        return name in self.files

    def why_not(self, name: str) -> str | None:
        self.asked["looks"] += 1
        return None if name in self.files else "it is not there"

    def size(self, name: str) -> int:
        self.asked["looks"] += 1
        return len(self.files[name])

    def read(self, name: str) -> bytes:
        self.asked["reads"] += 1
        self.asked["bytes"] += len(self.files[name])
        return self.files[name]

    def checksum(self, name: str) -> str:
        return hashlib.blake2b(self.read(name), digest_size=16).hexdigest()

    def array(self, name: str) -> Any:
        return np.load(io.BytesIO(self.read(name)))

    def names(self, folder: str = "") -> list[str]:
        self.asked["names"] += len(self.files)
        prefix = f"{folder}/" if folder else ""
        return [name[len(prefix) :] for name in self.files if name.startswith(prefix)]

    def replace(self, name: str, data: bytes) -> None:
        self.asked["writes"] += 1
        self.asked["bytes"] += len(data)
        self.files[name] = data

    def publish(self, name: str, data: bytes) -> bytes:
        self.replace(name, data)
        return data

    def remove(self, name: str) -> None:
        self.asked["removals"] += 1
        self.files.pop(name, None)

    def remove_folder(self, name: str) -> None: ...

    def tidy(self, folder: str = "") -> None: ...

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        self.asked["locks"] += 1
        return contextlib.nullcontext(True)


class Nothing:
    """A model whose features are all the same."""

    feature_dim = DIMENSION

    def describe(self) -> dict[str, Any]:
        return {"name": "nothing", "fingerprint": "0"}

    def encode(self, images: Sequence[ImageItem], **_: Any) -> Any:
        features = np.full((len(images), DIMENSION), DIMENSION**-0.5, np.float32)
        return SimpleNamespace(features=features, items=images, unreadable=[], patches=None)


class Workers:
    """Hands shards to so many workers in turn."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        self.planned = time.process_time()
        fillers = [
            Filler(task.place, task.record, task.plan, Nothing(), task.batch_size)  # type: ignore[arg-type]
            for _ in range(min(self.count, len(positions)))
        ]
        for turn, position in enumerate(positions):
            shard = fillers[turn % len(fillers)].fill(position)
            assert shard is not None
            yield Filled(shard.record, shard.idle)
        self.filled = time.process_time()


def images(count: int) -> Iterator[ImageItem]:
    for i in range(count):
        address = f"s3://pictures/{i // 1000:06d}/{i:09d}.jpg"
        yield ImageItem(address, RemoteFile(address, 100_000, f"{i}"))


def one(count: int, workers: int) -> str:
    place, crew = Memory(), Workers(workers)
    store_writer.place_at = lambda _: place  # type: ignore[assignment]
    begun = time.process_time()
    store_writer.fill_store(
        Nothing(),
        ImageStream(lambda: images(count)),
        "memory",
        shard_size=SHARD,
        fill=crew,  # type: ignore[arg-type]
    )
    ended = time.process_time()
    shards = -(-count // SHARD)
    times = (crew.planned - begun, crew.filled - crew.planned, ended - crew.filled)
    asked = [place.asked[kind] / shards for kind in ("looks", "reads", "writes", "locks", "names", "bytes")]
    return (
        f"{count:9,} {shards:7,} {workers:8,}"
        + "".join(f"{value:8.1f}" for value in asked[:5])
        + f"{asked[5] / 1024:9.1f}"
        + "".join(f"{1e6 * value / count:10.1f}" for value in times)
    )


def main(largest: int) -> None:
    print("   images  shards  workers   looks   reads  writes   locks   names  KB moved  plan µs   fill µs finish µs")
    print("                           per shard of 64 images                            CPU per image")
    count = 10_000
    while count <= largest:
        for workers in WORKERS:
            command = [sys.executable, __file__, str(count), str(workers)]
            print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="", flush=True)
        count *= 10


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(one(int(sys.argv[1]), int(sys.argv[2])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 1_000_000)
