"""What planning and committing costs as stores and workers grow: operations, bytes and time per shard, without a model.

    python bench/plan_traffic.py [largest number of images, 1000000 by default]

A store is filled by simulated workers, each with a state of its own, in a folder in memory that counts its requests.
Nothing is decoded or encoded: the time is that of the plan alone. If any of it grew with the square of the images or
with the workers, the columns would rise. The last column counts shards that were encoded twice, where the workers work
side by side without locks, as in cloud storage; goal: below 5%.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from deltaenergy.core.progress import Progress
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.items import ImageItem, hash_bytes
from deltaenergy.data.streams import ImageStream
from deltaenergy.store import encode, store, writer

SHARD, WORKERS, DIMENSION = 64, (1, 1000), 8
# For the double work: workers, and shards of each. A shard takes about this long.
SIDE_BY_SIDE, SHARDS_EACH, SHARD_SECONDS = 20, 10, 1.0


class Memory:
    """The folder of a store in a dictionary. It counts operations and bytes; to list it costs every name."""

    is_remote, path, address = False, "memory", "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self._one_at_a_time = threading.Lock()

    def __str__(self) -> str:
        return self.path

    def full_name(self, name: str) -> str:
        return name

    def exists(self, name: str) -> bool:
        self.asked["looks"] += 1
        return name in self.files

    def sizes(self, under: str = "") -> dict[str, int]:
        self.asked["names"] += len(self.files)
        prefix = f"{under}/" if under else ""
        files = dict(self.files)
        return {name[len(prefix) :]: len(data) for name, data in files.items() if name.startswith(prefix)}

    def read(self, name: str) -> bytes:
        self.asked["reads"] += 1
        if name not in self.files:
            raise FileNotFoundError(name)
        self.asked["bytes"] += len(self.files[name])
        return self.files[name]

    def map(self, name: str, size: int, without: tuple[int, int] | None = None) -> pa.Buffer:
        return pa.py_buffer(self.read(name))

    def put(self, name: str, data: bytes | pa.Buffer, *, if_absent: bool = False) -> bool:
        with self._one_at_a_time:
            self.asked["writes"] += 1
            self.asked["bytes"] += len(data)
            if if_absent and name in self.files:
                return False
            self.files[name] = bytes(data)
            return True

    def replace(self, name: str, data: bytes, before: bytes) -> bool:
        return self.read(name) == before and self.put(name, data)

    def delete(self, name: str) -> None:
        self.asked["removals"] += 1
        self.files.pop(name, None)

    def tidy(self, under: str = "") -> None: ...

    def lock(self, name: str, wait: float = 0) -> contextlib.AbstractContextManager[bool]:
        self.asked["locks"] += 1
        return contextlib.nullcontext(True)


class Nothing:
    """A model whose features are all the same; it may take a while for each shard."""

    feature_dim = DIMENSION

    def __init__(self, seconds: float = 0) -> None:
        self.seconds, self.shards = seconds, 0

    def describe(self) -> dict[str, Any]:
        return {"name": "nothing", "fingerprint": "0"}

    def encode(self, images: ImageStream, **_: Any) -> Any:
        items = list(images)
        self.shards += 1
        time.sleep(self.seconds * random.uniform(0.5, 1.5))
        features = np.full((len(items), DIMENSION), DIMENSION**-0.5, np.float32)
        return SimpleNamespace(features=features, items=items, unreadable=[], patches=None)


class Workers:
    """Has this many workers take shards in turn, each with a state of its own."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, work: writer.Work, progress: Progress | None) -> None:
        self.planned = time.process_time()
        shards = range(len(work.plan.shards))
        joiners = [writer.Joiner(work, Nothing()) for _ in range(min(self.count, len(shards)))]
        for turn, position in enumerate(shards):
            assert joiners[turn % len(joiners)].take(position, lambda *_: None)
        self.filled = time.process_time()


class SideBySide:
    """Has workers in threads join the work, each until no shard is left."""

    def __init__(self) -> None:
        self.models = [Nothing(SHARD_SECONDS) for _ in range(SIDE_BY_SIDE)]

    def __call__(self, work: writer.Work, progress: Progress | None) -> None:
        threads = [
            threading.Thread(
                target=writer.join_here, args=(work, model), kwargs={"first": first, "step": len(self.models)}
            )
            for first, model in enumerate(self.models)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def images(count: int) -> Iterator[ImageItem]:
    for i in range(count):
        url = f"s3://pictures/{i // 1000:06d}/{i:09d}.jpg"
        yield ImageItem(url, RemoteFile(url, 100_000, f"{i}"))


def fill(memory: Memory, join: Any, count: int) -> None:
    """Fill a store in memory with images at URLs, none of which is fetched."""
    changed: Any = SimpleNamespace(writer=writer, store=store, encode=encode)
    changed.writer.open_folder = changed.store.open_folder = lambda _: memory
    changed.encode._read = lambda image: encode._ReadImage(hash_bytes(image.id.encode()), image.source)
    settings = writer.StoreSettings(shard_size=SHARD)
    writer.fill_store(Nothing(), ImageStream(lambda: images(count), unique=True), "memory", settings, join=join)


def one(count: int, workers: int) -> str:
    memory, crew = Memory(), Workers(workers)
    began = time.process_time()
    fill(memory, crew, count)
    ended = time.process_time()
    shards = -(-count // SHARD)
    times = (crew.planned - began, crew.filled - crew.planned, ended - crew.filled)
    asked = [memory.asked[kind] / shards for kind in ("looks", "reads", "writes", "locks", "names", "bytes")]
    return (
        f"{count:9,} {shards:7,} {workers:8,}"
        + "".join(f"{value:8.1f}" for value in asked[:5])
        + f"{asked[5] / 1024:9.1f}"
        + "".join(f"{1e6 * value / count:10.1f}" for value in times)
    )


def double_work() -> str:
    memory, crew = Memory(), SideBySide()
    memory.is_remote = True
    shards = SIDE_BY_SIDE * SHARDS_EACH
    fill(memory, crew, shards * SHARD)
    encoded = sum(model.shards for model in crew.models)
    return (
        f"without locks, {SIDE_BY_SIDE} workers encoded {shards} shards {encoded} times: "
        f"{100 * (encoded - shards) / shards:.1f} % double work (goal: below 5%)"
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
    print(double_work())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(one(int(sys.argv[1]), int(sys.argv[2])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 1_000_000)
