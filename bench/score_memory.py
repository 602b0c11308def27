"""Peak memory of a detector's stream over 10⁴, 10⁵ and 10⁶ rows of features: from a store, and from a mapped array.

The peer is the run over 10⁴ rows. Each run is a process of its own; what counts is its largest private memory (RssAnon:
pages of mapped files can be dropped at any time). Goal: ≤ 1.25 times as much for a hundred times the rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import deltaenergy as de
from deltaenergy.store.store import Store
from random_store import unit_rows, write_store

ROWS, DIMENSION, CLASSES, SHARD = (10_000, 100_000, 1_000_000), 64, 100, 4_096


def write_both(folder: Path, rows: int) -> None:
    """A store of random features, and the same in one array next to it."""
    model = de.PrecomputedModel(DIMENSION).describe()
    write_store(folder, rows, dimension=DIMENSION, shard=SHARD, model=model)
    array = np.lib.format.open_memmap(folder.with_suffix(".npy"), "w+", np.float32, (rows, DIMENSION))
    for shard in Store.open(folder).shards():
        array[shard.rows] = shard.features


def private_memory() -> float:
    """Megabytes that no file stands for."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) / 1024


def stream(source: str) -> None:
    """Print how many verdicts there were, and the largest memory on the way."""
    classifier = de.PrecomputedClassifier(unit_rows(CLASSES, DIMENSION, 1), [f"class {k}" for k in range(CLASSES)])
    detector = de.Detector(classifier).calibrate(unit_rows(1_000, DIMENSION, 2))
    images = np.load(source, mmap_mode="r") if source.endswith(".npy") else source
    count, peak = 0, 0.0
    for _ in detector.stream(images):
        count += 1
        if count % 1_000 == 0:
            peak = max(peak, private_memory())
    print(count, peak)


def main() -> None:
    peaks: dict[str, list[float]] = {".store": [], ".npy": []}
    for rows in ROWS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "features.store"
            write_both(folder, rows)
            for ending, found in peaks.items():
                command = [sys.executable, __file__, str(folder.with_suffix(ending))]
                count, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                assert int(count) == rows
                found.append(float(peak))
    for ending, name in ((".store", "a feature store"), (".npy", "a mapped array")):
        first, *_, last = peaks[ending]
        each = ", ".join(f"{rows:,} rows {peak:.0f} MB" for rows, peak in zip(ROWS, peaks[ending]))
        print(f"peak memory over {name}, 100 times the rows: {last / first:.2f}× (goal ≤ 1.25×; {each})")


if __name__ == "__main__":
    stream(sys.argv[1]) if len(sys.argv) > 1 else main()
