"""A feature store of random unit features, written without a model or images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaenergy.store.folder import LocalFolder
from deltaenergy.store.shard import INDEX, MANIFEST, Manifest, ShardRecord, pack_shard


def unit_rows(count: int, dimension: int, seed: int) -> npt.NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_shard(
    folder: LocalFolder, number: int, start: int, features: npt.NDArray[np.float32]
) -> tuple[ShardRecord, pa.Buffer]:
    """The record and file of a shard with these features; its first image has the number `start`."""
    ids = [f"{folder.path.name}/folder {number}/image {start + row}.jpg" for row in range(len(features))]
    contents = [f"{start + row:032x}" for row in range(len(features))]
    columns = {"id": ids, "content": contents, "stamp": [f"1000000000:{start + row}" for row in range(len(features))]}
    nothing = pa.nulls(len(features), pa.string())
    index = pa.table({name: columns.get(name, nothing) for name in INDEX})
    return pack_shard(number, 1, 0, index, {"features": features})


def write_store(
    path: Path, rows: int, *, dimension: int = 512, shard: int = 1_024, seed: int = 0, model: dict[str, Any]
) -> Path:
    """A store of this many rows; shard i has the features `unit_rows(…, seed + i)`."""
    folder, records = LocalFolder(path), []
    for number, start in enumerate(range(0, rows, shard)):
        features = unit_rows(min(shard, rows - start), dimension, seed + number)
        record, data = random_shard(folder, number, start, features)
        folder.put(record.name, data)
        records.append(record)
    manifest = Manifest(model, dimension, False, "float32", shard, 32, True, 1, tuple(records))
    folder.put(MANIFEST, manifest.to_bytes())
    return path
