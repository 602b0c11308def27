"""Images in folders, in WebDataset archives and in Parquet files, and a count of what is fetched of those at URLs."""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from deltaenergy.data.remote.blocks import BlockCache, use_cache
from deltaenergy.data.remote.client import RemoteObject, get_range
from tests.data.archives import picture_bytes


def tar_bytes(files: dict[str, bytes], told: dict[str, str] | None = None) -> bytes:
    """An archive of these files, with a header for all of them if something is `told`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", pax_headers=told) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def samples(count: int, first: int = 0) -> bytes:
    """An archive of pictures with labels, as WebDataset writes it."""
    files = {}
    for number in range(first, first + count):
        files[f"{number:04}.png"] = picture_bytes("PNG", number % 7)
        files[f"{number:04}.cls"] = f"class {number % 3}".encode()
    return tar_bytes(files)


def parquet_bytes(columns: dict[str, Any], **options: Any) -> bytes:
    """A Parquet file of these columns."""
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, **options)
    return stream.getvalue()


def rows(count: int, first: int = 0, group: int = 5) -> bytes:
    """A Parquet file of pictures with labels, as the hub's library writes it."""
    numbers = range(first, first + count)
    records = [{"bytes": picture_bytes("PNG", number % 7), "path": None} for number in numbers]
    columns = {"image": records, "label": [f"class {number % 3}" for number in numbers]}
    return parquet_bytes(columns, row_group_size=group)


SHARDS = {".tar": samples, ".parquet": rows}


def write(folder: Path, files: dict[str, bytes]) -> None:
    """The same files on disk."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


class Fetched:
    """What is fetched of large objects, while parts have this size and so many bytes of them are kept."""

    def __init__(self, part_bytes: int, kept_bytes: int) -> None:
        self.parts: list[tuple[int, int]] = []
        self._lock = threading.Lock()

        def counted(of: RemoteObject, start: int, end: int) -> bytes:
            with self._lock:
                self.parts.append((start, end))
            return get_range(of, start, end)

        use_cache(BlockCache(counted, block_bytes=part_bytes, kept_bytes=kept_bytes))

    @property
    def bytes(self) -> int:
        """How many bytes were asked for."""
        return sum(end - start for start, end in self.parts)


def draw_images(folder: Path, names: Sequence[str], *, unreadable: str, copies: Mapping[str, str]) -> Path:
    """Images of random pixels in a new folder; one cannot be read, and some are the same as others."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
    (folder / unreadable).write_bytes(b"not an image")
    for name, original in copies.items():
        shutil.copy(folder / original, folder / name)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
