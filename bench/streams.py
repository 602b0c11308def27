"""Reading images where they are, and listing tables: speed against a plain loop that only reads bytes, and memory.

On disk: the bytes of all images of Parquet files and of WebDataset archives through `image_stream`, against pyarrow's
`iter_batches` and Python's `tarfile`, in CPU time; goal ≥ 0.5 (ours opens each image by itself, as decoding does).

At URLs: an S3 store in memory (moto), in a process of its own on this machine. Single objects in 32 threads, against
plain obstore and against pyarrow's own S3; one archive of 80 MB against `get_object` of boto3 whose bytes go to
`tarfile`; one Parquet file of 80 MB against pyarrow on its own S3. CPU time of this process, goal ≥ 0.5, though ours
lists the archive first and so receives its bytes twice. Requests and bytes are counted.

Memory: the largest private memory of a process of its own that goes through 10⁵ and 10⁶ rows, beyond what imports take.
Of each id eight bytes are remembered, for a moment twice; goal: no more than 24 bytes for each row more. The list of
all images would take about 600.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltaenergy.data.file import LocalFile
from deltaenergy.data.formats.parquet import close_readers
from deltaenergy.data.formats.tar import LISTS, tar_images
from deltaenergy.data.remote.blocks import BlockCache, use_cache
from deltaenergy.data.remote.client import RemoteObject, get_range
from deltaenergy.source import image_stream
from timing import Ratio, report

IMAGES, IMAGE_BYTES, FILES, ROUNDS = 5_000, 20_000, 5, 5
ROWS = (100_000, 1_000_000)
# At URLs: more than what is kept of blocks.
REMOTE_IMAGES, OBJECTS, REMOTE_THREADS, REMOTE_ROUNDS = 4_000, 1_000, 32, 3
SERVER = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(3600)
"""
TINY = 500  # so that the batches that are kept are full at 10⁵ rows already


def write_parquet(folder: Path, files: int = FILES, each: int = IMAGES // FILES) -> None:
    rng = np.random.default_rng(0)
    for part in range(files):
        cells = [rng.bytes(IMAGE_BYTES) for _ in range(each)]
        # As the hub's library writes them.
        table = pa.table({"image": [{"bytes": cell, "path": None} for cell in cells], "label": [part] * len(cells)})
        pq.write_table(table, folder / f"train-{part:05}-of-{files:05}.parquet", row_group_size=100)


def write_tars(folder: Path, files: int = FILES, each: int = IMAGES // FILES) -> None:
    rng = np.random.default_rng(0)
    for part in range(files):
        with tarfile.open(folder / f"{part:03}.tar", "w") as archive:
            for number in range(each):
                for ending, data in (("jpg", rng.bytes(IMAGE_BYTES)), ("cls", b"cat")):
                    member = tarfile.TarInfo(f"{number:06}.{ending}")
                    member.size, member.mtime = len(data), 1_700_000_000.5  # as WebDataset's writer does
                    archive.addfile(member, io.BytesIO(data))


def ours(images: Path | str) -> int:
    total = 0
    for item in image_stream(images):
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


def headers_by_us(folder: Path) -> int:
    return sum(1 for path in sorted(folder.iterdir()) for _ in tar_images(LocalFile(path)))


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
            report(f"{what}, {name}, {IMAGES:,} images", ratio, "speed-up", "≥ 0.5" if what == "reading" else "≥ 3")


@contextlib.contextmanager
def s3_store() -> Iterator[Any]:
    """A client of an S3 store in memory, with one bucket, `bench`; this process reads from it meanwhile."""
    import boto3

    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.stdout.readline().strip()}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client("s3")
        client.create_bucket(Bucket="bench")
        yield client
    finally:
        server.kill()
        server.wait()


def by_boto3(client: Any, name: str) -> int:
    total = 0
    with tarfile.open(fileobj=client.get_object(Bucket="bench", Key=name)["Body"], mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            total += len(file.read()) if file is not None and member.name.endswith(".jpg") else 0
    return total


def arrow_s3() -> Any:
    """Pyarrow's own S3."""
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        access_key="k",
        secret_key="s",
        region="us-east-1",
        scheme="http",
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"),
    )


def by_arrow_s3(name: str) -> int:
    total = 0
    with arrow_s3().open_input_file(f"bench/{name}") as file:
        for batch in pq.ParquetFile(file).iter_batches(100, columns=["image"]):
            total += sum(len(cell.as_py()["bytes"]) for cell in batch.column(0))
    return total


def in_threads(read: Callable[[Any], int], of: Iterable[Any]) -> int:
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        return sum(pool.map(read, of))


def objects_by_us() -> int:
    def read(item: Any) -> int:
        with item.source.open() as file:
            return len(file.read())

    return in_threads(read, image_stream("s3://bench/objects/"))


def objects_by_obstore() -> int:
    from obstore.store import S3Store

    store = S3Store("bench", client_options={"allow_http": True})
    names = [meta["path"] for chunk in store.list("objects") for meta in chunk]
    return in_threads(lambda name: len(bytes(store.get(name).bytes())), names)


def objects_by_arrow() -> int:
    from pyarrow.fs import FileSelector

    files = arrow_s3()
    names = [info.path for info in files.get_file_info(FileSelector("bench/objects", recursive=True))]

    def read(name: str) -> int:
        with files.open_input_stream(name) as file:
            return len(file.read())

    return in_threads(read, names)


def compare(what: str, mine: Callable[[], int], peer: Callable[[], int]) -> None:
    assert mine() == peer()
    ratio = Ratio([], [])
    for _ in range(REMOTE_ROUNDS):
        ratio.ours.append(cpu_seconds(mine))
        ratio.peer.append(cpu_seconds(peer))
    report(what, ratio, "speed-up", "≥ 0.5")


def remote() -> None:
    fetched: list[int] = []

    def counted(of: RemoteObject, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return get_range(of, start, end)

    with tempfile.TemporaryDirectory() as folder, s3_store() as client:
        rng = np.random.default_rng(0)
        for number in range(OBJECTS):
            client.put_object(Bucket="bench", Key=f"objects/{number:05}.jpg", Body=rng.bytes(IMAGE_BYTES))
        for peer, by_peer in (("plain obstore", objects_by_obstore), ("pyarrow's S3", objects_by_arrow)):
            compare(f"reading, {OBJECTS:,} objects on S3, against {peer}", objects_by_us, by_peer)
        write_tars(Path(folder), 1, REMOTE_IMAGES)
        write_parquet(Path(folder), 1, REMOTE_IMAGES)
        peers = {".tar": lambda name: by_boto3(client, name), ".parquet": by_arrow_s3}
        for path in sorted(Path(folder).iterdir()):
            client.put_object(Bucket="bench", Key=path.name, Body=path.read_bytes())

            def mine(name: str = path.name) -> int:
                use_cache(BlockCache(counted))
                LISTS.clear()
                close_readers()
                fetched.clear()
                return ours(f"s3://bench/{name}")

            peer = "boto3 and tarfile" if path.suffix == ".tar" else "pyarrow's S3"
            what = f"reading, {path.suffix} on S3, {REMOTE_IMAGES:,} images, against {peer}"
            compare(what, mine, lambda path=path: peers[path.suffix](path.name))
            each, size = len(fetched) / REMOTE_IMAGES, path.stat().st_size
            print(
                f"  {each:.3f} requests per image, {sum(fetched) / size:.2f} times the bytes of the file, list and all"
            )


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
    """A table of paths, or of tiny images, in row groups of the size that pyarrow writes by itself."""
    if path.stem == "images":
        schema = pa.schema({"image": pa.binary()})
    else:
        schema = pa.schema({"path": pa.string(), "label": pa.string()})
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8") as file:
            file.write("path,label\n")
            file.writelines(f"folder {row // 1000}/image {row}.jpg,cat\n" for row in range(rows))
        return
    with pq.ParquetWriter(path, schema) as writer:
        if path.stem == "images":
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
        if Path(source).stem == "images":
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
    headers = (
        lambda folder: sum(1 for path in sorted(folder.iterdir()) for _ in tar_images(LocalFile(path))),
        headers_by_tarfile,
    )
    speed(write_parquet, "Parquet", {"reading": (ours, by_pyarrow)})
    speed(write_tars, "WebDataset archives", {"listing": headers, "reading": (ours, by_tarfile)})
    remote()
    for name in ("paths.csv", "paths.parquet", "images.parquet"):
        memory(name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write_table(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["go"]:
        go_through(sys.argv[2])
    else:
        main()
