"""The feature store on disk: what each file holds, and how a shard is written so that it is there whole or not at all.

    store.json              the manifest: what made the store, and every shard with the checksums of its files
    00000.features.npy      unit image features (n, D) of one shard, memory-mapped when read
    00000.patches.npy       unit patch features (n, P, D), where asked for
    00000.index.parquet     one line per image: id, label, domain, content hash, its row here, or why it has none

Each file is there whole or not at all, a shard's index after its arrays: with the index the shard is there. While a
store is being filled, `plan.py` says which shards there will be; the manifest lists them all when they are there.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deltaenergy.data.items import hash_bytes
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings
from deltaenergy.store.folder import Place
from deltaenergy.store.manifest import RECORD, FileRecord, Manifest, ShardRecord, StoreRecord

if TYPE_CHECKING:
    import numpy.typing as npt

_ENDINGS = {"features": "features.npy", "patches": "patches.npy", "index": "index.parquet"}
SHARD_COLUMN = "shard"
_SHARD_FILE = r"\d{5,}\.(?:features\.npy|patches\.npy|index\.parquet)"


class Entry(NamedTuple):
    """One image of the store.

    `content` is the hash of its bytes, `stamp` what tells cheaply whether they may have changed (size and time of a
    file), `row` its place in the shard that this entry came with; a picture that another entry brought in has none.
    An entry with neither content nor error withdraws an earlier one: a folder that could not be listed, and now can.
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
    """One shard: what the manifest says of it, and its index."""

    record: ShardRecord
    entries: list[Entry]
    idle: bool = False  # it says nothing that the store does not say already

    @property
    def number(self) -> int:
        """Its number."""
        return self.record.number

    @property
    def rows(self) -> int:
        """How many images have features here."""
        return self.record.rows


def part_name(number: int, kind: str) -> str:
    """The file of a shard's `features`, `patches` or `index`."""
    return f"{number:05d}.{_ENDINGS[kind]}"


def write_shard(
    place: Place, number: int, entries: list[Entry], arrays: Mapping[str, npt.NDArray[Any]], *, idle: bool = False
) -> Shard:
    """Write the arrays, then the index, with which the shard is there.

    An `idle` shard says nothing that the store does not say already.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files: dict[str, FileRecord] = {}
    for kind, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        data = place.publish(part_name(number, kind), buffer.getvalue())
        files[kind] = FileRecord(len(data), hash_bytes(data))
    rows = len(arrays["features"])
    columns: dict[str, Any] = {name: [getattr(entry, name) for entry in entries] for name in Entry._fields}
    # Says to those who read the index as a table where its rows are.
    columns[SHARD_COLUMN] = [number] * len(entries)
    kinds = {"row": pa.int32(), SHARD_COLUMN: pa.int32()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    metadata = _metadata(rows, files, entries, idle)
    buffer = io.BytesIO()
    table = pa.table(columns, schema=schema.with_metadata(metadata))
    with pq.ParquetWriter(buffer, table.schema) as writer:
        writer.write_table(table)
    data = place.publish(part_name(number, "index"), buffer.getvalue())
    if data != buffer.getvalue():  # somebody else's
        return committed_shard(place, number, data)
    return _shard(number, data, entries, metadata)


def read_shards(place: Place, manifest: Manifest) -> list[Shard]:
    """All shards of the store, or an `ArtifactError` for the first that is not whole as far as a quick look tells."""
    for record in manifest.shards:
        check_sizes(place, record)
    return [read_shard(place, record) for record in manifest.shards]


def read_shard(place: Place, record: ShardRecord) -> Shard:
    """A shard by its index, if that has the bytes that were written."""
    name = part_name(record.number, "index")
    data = _read(place, name)
    if hash_bytes(data) != record.files["index"].checksum:
        raise ArtifactError(f"{place.where(name)} is damaged: its checksum differs from that in {RECORD}. {REPAIR}")
    _, entries = _parse_index(place.where(name), data)
    return Shard(record, entries)


def committed_shard(place: Place, number: int, data: bytes | None = None) -> Shard:
    """A shard that no manifest lists yet, by its index alone, which carries a checksum of what it says."""
    name = part_name(number, "index")
    if data is None:
        data = _read(place, name)
    metadata, entries = _parse_index(place.where(name), data)
    try:
        shard = _shard(number, data, entries, metadata)
        fits = metadata == _metadata(shard.rows, shard.record.files, entries, shard.idle)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{place.where(name)} cannot be read: {error!r}. {REPAIR}") from error
    if not fits:
        raise ArtifactError(f"{place.where(name)} is damaged: its checksum does not fit its content. {REPAIR}")
    return shard


def damaged_files(place: Place, record: ShardRecord) -> list[str]:
    """The names of the shard's files whose bytes are not those that were written."""
    names = {part_name(record.number, kind): part for kind, part in record.files.items()}
    return [name for name, part in names.items() if not _is_sound(place, name, part)]


def map_array(place: Place, shard: Shard, kind: str, store: StoreRecord) -> npt.NDArray[Any]:
    """A shard's array, memory-mapped where the place can."""
    name = part_name(shard.number, kind)
    try:
        array = place.array(name)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{place.where(name)} cannot be read: {error}. {REPAIR}") from error
    dimensions = {"features": 2, "patches": 3}[kind]
    wanted = (shard.rows, store.feature_dim, store.dtype, dimensions)
    if (*array.shape[:1], *array.shape[-1:], array.dtype.name, array.ndim) != wanted:
        raise ArtifactError(
            f"{place.where(name)} holds {array.dtype} of shape {array.shape}, not {shard.rows} rows of "
            f"{store.feature_dim} {store.dtype} numbers. {REPAIR}"
        )
    return array


def remove_shard(place: Place, number: int) -> None:
    """Remove the files of a shard that counts no more: the index first, without which it is none."""
    for kind in reversed(_ENDINGS):
        place.remove(part_name(number, kind))


def remove_leftovers(place: Place, numbers: Collection[int]) -> None:
    """Remove whatever files there are of shards with these numbers."""
    wanted = set(numbers)
    found = {int(name.partition(".")[0]) for name in place.names() if re.fullmatch(_SHARD_FILE, name)}
    for number in sorted(found & wanted):
        remove_shard(place, number)


def _is_sound(place: Place, name: str, part: FileRecord) -> bool:
    try:
        return place.why_not(name) is None and place.size(name) == part.bytes and place.checksum(name) == part.checksum
    except OSError:
        return False


def check_sizes(place: Place, record: ShardRecord) -> None:
    """Raise `ArtifactError` unless the shard's files are there with the sizes that were written."""
    for kind, part in record.files.items():
        name = part_name(record.number, kind)
        if (reason := place.why_not(name)) is not None:
            raise ArtifactError(f"{place.where(name)} cannot be read: {reason}. {REPAIR}")
        if (size := place.size(name)) != part.bytes:
            raise ArtifactError(
                f"{place.where(name)} has {size} bytes, not {part.bytes} as when it was written. {REPAIR}"
            )


def _read(place: Place, name: str) -> bytes:
    if (reason := place.why_not(name)) is not None:
        raise ArtifactError(f"{place.where(name)} cannot be read: {reason}. {REPAIR}")
    try:
        return place.read(name)
    except OSError as error:
        raise ArtifactError(f"{place.where(name)} cannot be read: {error.strerror or error}. {REPAIR}") from error


def _metadata(rows: int, files: Mapping[str, FileRecord], entries: Sequence[Entry], idle: bool) -> dict[str, str]:
    """What the index says of its arrays, and a checksum of that and of all entries."""
    arrays = {kind: part for kind, part in files.items() if kind != "index"}
    said = {
        "rows": str(rows),
        "checksums": json.dumps({kind: part.checksum for kind, part in arrays.items()}, sort_keys=True),
        "bytes": json.dumps({kind: part.bytes for kind, part in arrays.items()}, sort_keys=True),
        "idle": str(int(idle)),
    }
    return {**said, "seal": hash_bytes(json.dumps([said, entries]).encode())}


def _shard(number: int, data: bytes, entries: list[Entry], metadata: Mapping[str, str]) -> Shard:
    sizes, checksums = json.loads(metadata["bytes"]), json.loads(metadata["checksums"])
    files = {kind: FileRecord(int(size), str(checksums[kind])) for kind, size in sizes.items()}
    files["index"] = FileRecord(len(data), hash_bytes(data))
    return Shard(_record(number, entries, int(metadata["rows"]), files), entries, idle=metadata["idle"] == "1")


def _record(number: int, entries: list[Entry], rows: int, files: dict[str, FileRecord]) -> ShardRecord:
    unreadable = sum(entry.error is not None for entry in entries)
    return ShardRecord(number, len(entries), rows, unreadable, hash_strings(entry.id for entry in entries), files)


def _parse_index(path: str, data: bytes) -> tuple[dict[str, str], list[Entry]]:
    """The index's metadata and entries, or an `ArtifactError`. Whoever asks compares a checksum of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        columns = [table.column(name).to_pylist() for name in Entry._fields]
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. {REPAIR}") from error
    return metadata, list(map(Entry._make, zip(*columns)))


REPAIR = "Run `deltaenergy features` again with the same images: it encodes anew what is damaged."
