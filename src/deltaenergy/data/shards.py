"""The feature store on disk: what each file holds, and how a shard is written so that it is there whole or not at all.

    store.json              what made it: model, precision, shard size, whether the last run finished
    00000.features.npy      unit image features (n, D) of one shard, memory-mapped when read
    00000.patches.npy       unit patch features (n, P, D), where asked for
    00000.index.parquet     one line per image: id, label, domain, content hash, its row here, or why it has none

A shard exists when its index file does. That file is written last and holds the checksums of the arrays, so a kill
at any moment leaves at most arrays without an index, which the next run overwrites.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, replacing, write_json

if TYPE_CHECKING:
    import numpy.typing as npt

FORMAT = "deltaenergy feature store 1"
DTYPES = ("float32", "float16")
_RECORD = "store.json"
_INDEX = ".index.parquet"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StoreRecord:
    """The content of `store.json`."""

    model: dict[str, Any]
    feature_dim: int
    patches: bool
    dtype: str
    shard_size: int
    complete: bool


class Entry(NamedTuple):
    """One image of the store.

    `content` is the hash of its bytes, `stamp` what tells cheaply whether they may have changed (size and time of a
    file), `row` its place in the shard that this entry came with; a picture that another entry brought in has none.
    """

    id: str
    label: str | None
    domain: str | None
    content: str | None
    stamp: str
    row: int | None
    error: str | None


@dataclass(frozen=True)
class Shard:
    """One shard's index, and the checksums of its arrays by file name ending."""

    number: int
    rows: int
    entries: list[Entry]
    checksums: dict[str, str]


def is_store(path: object) -> bool:
    """Whether `path` names a folder that holds a feature store."""
    if not isinstance(path, str | Path):
        return False
    try:
        return (Path(path) / _RECORD).is_file()
    except (OSError, ValueError):  # too long a name, or a NUL in it
        return False


def read_record(folder: Path) -> StoreRecord:
    """What made the store, or an `ArtifactError`."""
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder. A feature store is a folder written by `deltaenergy features`.")
    record = read_json(folder / _RECORD)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArtifactError(f"{folder / _RECORD} does not describe a feature store that this version reads ({FORMAT}).")
    try:
        return StoreRecord(**{field.name: record[field.name] for field in fields(StoreRecord)})
    except KeyError as error:
        raise ArtifactError(f"{folder / _RECORD}: the entry {error} is missing.") from error


def write_record(folder: Path, record: StoreRecord) -> None:
    """Write `store.json`."""
    write_json(folder / _RECORD, {"format": FORMAT, **asdict(record)})


def shard_numbers(folder: Path) -> list[int]:
    """The shards that exist, ascending."""
    names = (path.name.removesuffix(_INDEX) for path in folder.glob(f"*{_INDEX}"))
    return sorted(int(name) for name in names if name.isdigit())


def array_path(folder: Path, number: int, kind: str) -> Path:
    """The file of a shard's `features` or `patches`."""
    return folder / f"{number:05d}.{kind}.npy"


def write_shard(folder: Path, number: int, entries: list[Entry], arrays: Mapping[str, npt.NDArray[Any]]) -> Shard:
    """Write the arrays, then the index that makes them count."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    checksums: dict[str, str] = {}
    for kind, array in arrays.items():
        with replacing(array_path(folder, number, kind)) as temporary:
            with temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            checksums[kind] = hash_file(temporary)
    shard = Shard(number, len(arrays["features"]), entries, checksums)
    columns = {name: [getattr(entry, name) for entry in entries] for name in Entry._fields}
    metadata = {"rows": str(shard.rows), "checksums": json.dumps(checksums, sort_keys=True)}
    schema = pa.schema([(name, pa.int32() if name == "row" else pa.string()) for name in Entry._fields])
    with replacing(folder / f"{number:05d}{_INDEX}") as temporary:
        pq.write_table(pa.table(columns, schema=schema.with_metadata(metadata)), temporary)
    return shard


def read_shard(folder: Path, number: int) -> Shard:
    """A shard's index. Raises `ArtifactError` if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{number:05d}{_INDEX}"
    try:
        table = pq.read_table(path, use_threads=False)
        metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        columns = [table.column(name).to_pylist() for name in Entry._fields]
        checksums: dict[str, str] = json.loads(metadata["checksums"])
        return Shard(number, int(metadata["rows"]), list(map(Entry._make, zip(*columns))), checksums)
    except (OSError, pa.ArrowException, KeyError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. {REPAIR}") from error


def map_array(folder: Path, shard: Shard, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A shard's array, memory-mapped; `shape` is that of one row, with −1 where any length will do."""
    path = array_path(folder, shard.number, kind)
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. {REPAIR}") from error
    fits = array.ndim == len(shape) + 1 and all(want in (-1, has) for want, has in zip(shape, array.shape[1:]))
    if len(array) != shard.rows or not fits or array.dtype.name not in DTYPES:
        raise ArtifactError(
            f"{path} holds {array.dtype} of shape {array.shape}, not {shard.rows} rows of {shape}. {REPAIR}"
        )
    return array


def damage(folder: Path, shard: Shard) -> str | None:
    """The name of the first of the shard's files whose bytes are not those that were written, or None."""
    for kind, checksum in shard.checksums.items():
        path = array_path(folder, shard.number, kind)
        if not path.is_file() or hash_file(path) != checksum:
            return path.name
    return None


def remove_shard(folder: Path, number: int) -> None:
    """Make a shard not count; its arrays are overwritten by the shard that takes its number."""
    (folder / f"{number:05d}{_INDEX}").unlink(missing_ok=True)


def hash_file(path: Path) -> str:
    """Hash of a file's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


REPAIR = "Run `deltaenergy features` again with the same images: it encodes anew what is damaged."
