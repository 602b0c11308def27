"""The files of a feature store, and what is checked of them before they are parsed.

    store.json         the manifest: what made the store, and every shard with the hashes of its parts
    00003-1.arrow      a shard, one Arrow IPC file: row i is image i

The columns of a shard are id, label, domain, content (a hash of the image's bytes), stamp (a cheap sign that they
changed) and error, then features and, where requested, patches. An image that cannot be read has an error, and null
instead of features. The file's bytes are the index, then the features, then the rest of the index: each part has its
own hash, so a store is checked without reading its features. Shard 3 is written again as `00003-2.arrow` when an image
in it has changed; the number after the dash is the version of the store in which it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from deltaenergy.data.decode import FAR_THREADS
from deltaenergy.data.remote.url import is_url, may_be_folder
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings, schema
from deltaenergy.files.artifact import CHECKSUM, check_bytes, json_with_checksum
from deltaenergy.files.reading import parse_json
from deltaenergy.store.folder import StoreFolder, open_folder

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Arrays = dict[str, npt.NDArray[Any]]

T = TypeVar("T")
R = TypeVar("R")
FORMAT = "deltaenergy feature store 3"
MANIFEST = "store.json"
DTYPES = ("float32", "float16")
INDEX = ("id", "label", "domain", "content", "stamp", "error")
REPAIR = "Repair it with `deltaenergy verify` or `repair_store`, and the images that it was made from."

_Count = Annotated[int, schema.whole(0)]
_Number = Annotated[int, schema.whole(1)]
_Hash = Annotated[str, schema.text(matching="[0-9a-f]{32}")]


@dataclass(frozen=True)
class ShardRecord:
    """What the manifest says of a shard.

    `ids` is a hash of its images' ids in order; `held` the number of shards that the store had when it was planned,
    whose features its equal images share. The features are the bytes from `start` to `stop` of its file.
    """

    number: _Count
    version: _Number
    images: _Count
    unreadable: _Count
    held: _Count
    ids: Annotated[str, schema.text(matching="[0-9a-f]{16}")]
    bytes: _Number
    start: _Count
    stop: _Count
    index_hash: _Hash
    features_hash: _Hash

    @property
    def name(self) -> str:
        return shard_name(self.number, self.version)


@dataclass(frozen=True)
class Manifest:
    """The content of `store.json`: `version` counts the runs that added to the store, and `complete` says whether the
    last of them ended.
    """

    model: Annotated[
        dict[str, Any], schema.record({"name": schema.path_text(), "fingerprint": schema.text()}, others=True)
    ]
    feature_dim: _Number
    patches: Annotated[bool, schema.truth()]
    dtype: Annotated[str, schema.text(among=DTYPES)]
    shard_size: _Number
    batch_size: _Number
    complete: Annotated[bool, schema.truth()]
    version: _Count
    shards: Annotated[tuple[ShardRecord, ...], schema.list_of(schema.record(schema.checks_of(ShardRecord)))]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Manifest:
        """From its entries as JSON has them."""
        return cls(**{**values, "shards": tuple(ShardRecord(**shard) for shard in values["shards"])})

    def to_bytes(self) -> bytes:
        return json_with_checksum({"format": FORMAT, **asdict(self)})


_ENTRIES = schema.record({"format": schema.text(), **schema.checks_of(Manifest), CHECKSUM: schema.text()})


def shard_name(number: int, version: int) -> str:
    return f"{number:05d}-{version}.arrow"


def is_store(path: object) -> bool:
    """Whether `path` names a folder that has a feature store."""
    if is_url(path) and not may_be_folder(path):
        return False
    return isinstance(path, str | Path) and open_folder(path).exists(MANIFEST)


def read_manifest(folder: StoreFolder) -> tuple[Manifest, bytes]:
    path = folder.full_name(MANIFEST)
    try:
        data = folder.read(MANIFEST)
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder} is not a feature store: it has no {MANIFEST}. `deltaenergy features` makes a store."
        ) from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a NUL in its name, or what is not valid text
        raise ArtifactError(f"{str(folder)!r} is not the name of a folder: {error}.") from error
    values = parse_json(data, path)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} is of another version of deltaenergy: run `deltaenergy features` with the same images and a new "
            "folder."
        )
    check_bytes(data, path)
    _ENTRIES(values, schema.Where(path))
    return Manifest.of({name: values[name] for name in values if name not in ("format", CHECKSUM)}), data


def pack_shard(number: int, version: int, held: int, index: pa.Table, arrays: Arrays) -> tuple[ShardRecord, pa.Buffer]:
    """A shard's record and file. `features` (n, D) and `patches` (n, P, D) are zero where the index has an error."""
    import pyarrow as pa

    table = with_arrays(index, arrays)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:  # one batch of rows, so each column is one piece of the file
        columns = [column.combine_chunks() for column in table.columns]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))
    data = sink.getvalue()
    numbers = [values.buffers()[1] for values, _ in map(_innermost, _parse(data).columns[len(INDEX) :]) if len(values)]
    start = numbers[0].address - data.address if numbers else data.size
    stop = numbers[-1].address - data.address + numbers[-1].size if numbers else data.size
    record = ShardRecord(
        number=number,
        version=version,
        images=len(index),
        unreadable=len(index) - index["error"].null_count,
        held=held,
        ids=hash_strings(index["id"].to_pylist()),
        bytes=data.size,
        start=start,
        stop=stop,
        index_hash=_hash(data[:start], data[stop:]),
        features_hash=_hash(data[start:stop]),
    )
    return record, data


def with_arrays(index: pa.Table, arrays: Arrays) -> pa.Table:
    """An index with arrays as further columns, null where it has an error."""
    import pyarrow as pa

    failed = index["error"].is_valid().combine_chunks()
    for name, array in arrays.items():
        column: pa.Array = pa.array(array.ravel())
        for size in reversed(array.shape[2:]):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        index = index.append_column(name, pa.FixedSizeListArray.from_arrays(column, array.shape[1], mask=failed))
    return index


def read_index(folder: StoreFolder, record: ShardRecord) -> pa.Table:
    """A shard's index; its features are not read."""
    return _read(folder, record, without_features=True).select(INDEX)


def read_arrays(folder: StoreFolder, record: ShardRecord) -> tuple[pa.Table, Arrays]:
    """A shard's index, and `features` and `patches` as views on its file; rows with an error are zero."""
    table = _read(folder, record)
    arrays = {}
    for name in table.column_names[len(INDEX) :]:
        values, shape = _innermost(table[name])
        arrays[name] = values.to_numpy().reshape(shape)
    return table.select(INDEX), arrays


def find_damage(folder: StoreFolder, records: Sequence[ShardRecord], *, features: bool = False) -> dict[str, str]:
    """What is wrong with the files of some shards, by name; with `features` every byte is read."""
    sizes = folder.sizes()

    def look(record: ShardRecord) -> str | None:
        if record.name not in sizes:
            return "it is missing, or not a file"
        if sizes[record.name] != record.bytes:
            return f"it has {sizes[record.name]:,} bytes, not {record.bytes:,}"
        try:
            data = _map(folder, record, without_features=not features)
        except (OSError, ArtifactError) as error:
            return str(error)
        if features and _hash(data[record.start : record.stop]) != record.features_hash:
            return "its features have another hash than when they were written"
        return None

    reasons = zip(records, each_of(folder, look, records))
    return {record.name: reason for record, reason in reasons if reason is not None}


def damaged(folder: StoreFolder, found: dict[str, str]) -> ArtifactError:
    name, reason = next(iter(found.items()))
    others = f" So are {len(found) - 1} other files." if len(found) > 1 else ""
    return ArtifactError(f"{folder.full_name(name)} is damaged: {reason}.{others} {REPAIR}")


def same_images(folder: StoreFolder, record: ShardRecord) -> ShardRecord | None:
    """The record of the file that is there, if its index is as in `record`: its features may be rounded differently."""
    try:
        data = _map(folder, record)
    except ArtifactError:
        return None
    return replace(record, features_hash=_hash(data[record.start : record.stop]))


def each_of(folder: StoreFolder, read: Callable[[T], R], of: Sequence[T]) -> Iterator[R]:
    """The results of reading, in order; from cloud storage, where most of the time is waiting, several at a time."""
    if not folder.is_remote:
        yield from map(read, of)
        return
    with ThreadPoolExecutor(FAR_THREADS) as pool:
        yield from pool.map(read, of)


def _read(folder: StoreFolder, record: ShardRecord, *, without_features: bool = False) -> pa.Table:
    import pyarrow as pa

    try:
        table = _parse(_map(folder, record, without_features=without_features))
        table.select(INDEX).validate(full=True)
        if len(table) != record.images:
            raise ArtifactError(f"it has {len(table)} rows, not {record.images}")
    except (OSError, pa.ArrowException, KeyError, ArtifactError) as error:
        raise damaged(folder, {record.name: str(error)}) from error
    return table


def _map(folder: StoreFolder, record: ShardRecord, *, without_features: bool = False) -> pa.Buffer:
    """A shard's file, if its index has the bytes that were written: other bytes are never parsed."""
    left_out = (record.start, record.stop) if without_features else None
    data = folder.map(record.name, record.bytes, without=left_out)
    if data.size != record.bytes or _hash(data[: record.start], data[record.stop :]) != record.index_hash:
        raise ArtifactError("its index has another hash than when it was written")
    return data


def _parse(data: pa.Buffer) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_file(data).read_all()


def _innermost(column: pa.ChunkedArray) -> tuple[pa.Array, list[int]]:
    """The numbers in a column of lists, without a copy, and their shape."""
    values, shape = column.chunk(0), [len(column)]
    while hasattr(values.type, "list_size"):
        shape.append(values.type.list_size)
        values = values.values
    return values, shape


def _hash(*parts: pa.Buffer) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
