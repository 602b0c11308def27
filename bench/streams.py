"""Reading pictures where they lie, and listing tables: speed beside the bare loop that only reads bytes, and memory.

Speed: the bytes of all pictures of Parquet files and of WebDataset archives through `image_stream`, beside pyarrow's
`iter_batches` and Python's `tarfile`, in CPU time; goal ≥ 0.5 (ours opens each picture by itself, as decoding threads
do). Memory: the largest private memory of a process of its own that goes through 10⁵ and 10⁶ rows, beyond what imports
take. Of each id eight bytes are remembered, for a moment twice; goal: no more than 24 bytes for each row more. The list
of all items would take about 600.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltaenergy.data.inputs import image_stream
from deltaenergy.data.tar import tar_images
from timing import Ratio, report

PICTURES, PICTURE_BYTES, FILES, ROUNDS = 5_000, 20_000, 5, 5
ROWS = (100_000, 1_000_000)
TINY = 500  # so that the batches that are kept are full at 10⁵ rows already


def write_parquet(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part in range(FILES):
        cells = [rng.bytes(PICTURE_BYTES) for _ in range(PICTURES // FILES)]
        # As the hub's library writes them.
        table = pa.table({"image": [{"bytes": cell, "path": None} for cell in cells], "label": [part] * len(cells)})
        pq.write_table(table, folder / f"train-{part:05}-of-{FILES:05}.parquet", row_group_size=100)


def write_tars(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part in range(FILES):
        with tarfile.open(folder / f"{part:03}.tar", "w") as archive:
            for number in range(PICTURES // FILES):
                for ending, data in (("jpg", rng.bytes(PICTURE_BYTES)), ("cls", b"cat")):
                    member = tarfile.TarInfo(f"{number:06}.{ending}")
                    member.size, member.mtime = len(data), 1_700_000_000.5  # as WebDataset's writer does
                    archive.addfile(member, io.BytesIO(data))


def ours(folder: Path) -> int:
    total = 0
    for item in image_stream(folder):
        with item.source.open() as file:  # type: ignore[union-attr]
            total += len(file.read())
    return total


def by_pyarrow(folder: Path) -> int:
    total = 0
    for path in sorted(folder.iterdir()):
        for batch in pq.ParquetFile(path).iter_batches(100, columns=["image"]):
            total += sum(len(cell.as_py()["bytes"]) for cell in batch.column(0))
    return total


def by_tarfile(folder: Path) -> int:
    total = 0
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                total += len(file.read()) if file is not None and member.name.endswith(".jpg") else 0
    return total


def headers_by_tarfile(folder: Path) -> int:
    count = 0
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            count += sum(member.name.endswith(".jpg") for member in archive)
    return count


def speed(write: Callable[[Path], None], name: str, pairs: dict[str, tuple[Callable[[Path], int], ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for what, (mine, peer) in pairs.items():
            assert mine(Path(folder)) == peer(Path(folder))
            ratio = Ratio([], [])
            for _ in range(ROUNDS):
                ratio.ours.append(cpu_seconds(lambda mine=mine: mine(Path(folder))))
                ratio.peer.append(cpu_seconds(lambda peer=peer: peer(Path(folder))))
            report(f"{what}, {name}, {PICTURES:,} pictures", ratio, "speed-up", "≥ 0.5" if what == "reading" else "≥ 3")


def cpu_seconds(function: Callable[[], object]) -> float:
    """Of this process: what others do on the machine does not count."""
    start = time.process_time()
    function()
    return time.process_time() - start


def private_memory() -> float:
    """Megabytes that no file stands for."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) / 1024


def write_table(path: Path, rows: int) -> None:
    """A table of paths, or of tiny pictures, in row groups of the size that pyarrow writes by itself."""
    if path.stem == "pictures":
        schema = pa.schema({"image": pa.binary()})
    else:
        schema = pa.schema({"path": pa.string(), "label": pa.string()})
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8") as file:
            file.write("path,label\n")
            file.writelines(f"folder {row // 1000}/image {row}.jpg,cat\n" for row in range(rows))
        return
    with pq.ParquetWriter(path, schema) as writer:
        if path.stem == "pictures":
            rng = np.random.default_rng(0)
            writer.write_table(pa.table({"image": [rng.bytes(TINY) for _ in range(rows)]}))
        else:
            names = [f"folder {row // 1000}/image {row}.jpg" for row in range(rows)]
            writer.write_table(pa.table({"path": names, "label": ["cat"] * rows}))


def go_through(source: str) -> None:
    """Print how many rows there were, and the largest memory on the way."""
    image_stream([b""]).survey()
    before, count, peak = private_memory(), 0, 0.0
    for item in image_stream(source):
        if Path(source).stem == "pictures":
            with item.source.open() as file:  # type: ignore[union-attr]
                assert len(file.read()) == TINY
        count += 1
        if count % 1000 == 0:
            peak = max(peak, private_memory())
    print(count, peak - before)


def memory(name: str) -> None:
    peaks = []
    for rows in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            subprocess.run([sys.executable, __file__, "write", str(path), str(rows)], check=True)
            command = [sys.executable, __file__, "go", str(path)]
            count, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            assert int(count) == rows
            peaks.append(float(peak))
    each = ", ".join(f"{rows:,} rows {peak:.0f} MB" for rows, peak in zip(ROWS, peaks))
    more = (peaks[1] - peaks[0]) * 2**20 / (ROWS[1] - ROWS[0])
    print(f"memory of {name}: {more:.0f} bytes more for each row more (goal ≤ 24; {each})")


def main() -> None:
    headers = (lambda folder: sum(1 for path in sorted(folder.iterdir()) for _ in tar_images(path)), headers_by_tarfile)
    speed(write_parquet, "Parquet", {"reading": (ours, by_pyarrow)})
    speed(write_tars, "WebDataset archives", {"listing": headers, "reading": (ours, by_tarfile)})
    for name in ("paths.csv", "paths.parquet", "pictures.parquet"):
        memory(name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write_table(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["go"]:
        go_through(sys.argv[2])
    else:
        main()
