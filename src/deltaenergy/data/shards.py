"""The feature store on disk: what each file holds, and how a shard is written so that it is there whole or not at all.

    store.json              the manifest: what made the store, and every shard with the checksums of its files
    00000.features.npy      unit image features (n, D) of one shard, memory-mapped when read
    00000.patches.npy       unit patch features (n, P, D), where asked for
    00000.index.parquet     one line per image: id, label, domain, content hash, its row here, or why it has none

Each file is written under a temporary name and renamed, the manifest after the files that it lists. A kill at any
moment leaves at most files that no manifest lists, which the next run overwrites.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deltaenergy.data.content import hash_bytes, hash_file
from deltaenergy.data.manifest import RECORD, Manifest, Part, ShardRecord, StoreRecord
from deltaenergy.data.regular import why_not_a_file
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings, replacing

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_ENDINGS = {"features": "features.npy", "patches": "patches.npy", "index": "index.parquet"}
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

    @property
    def number(self) -> int:
        """Its number."""
        return self.record.number

    @property
    def rows(self) -> int:
        """How many images have features here."""
        return self.record.rows


def part_path(folder: Path, number: int, kind: str) -> Path:
    """The file of a shard's `features`, `patches` or `index`."""
    return folder / f"{number:05d}.{_ENDINGS[kind]}"


def write_shard(folder: Path, number: int, entries: list[Entry], arrays: Mapping[str, npt.NDArray[Any]]) -> Shard:
    """Write the arrays and the index. They count when the manifest lists them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files: dict[str, Part] = {}
    for kind, array in arrays.items():
        with replacing(part_path(folder, number, kind)) as temporary:
            with temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            files[kind] = Part(temporary.stat().st_size, hash_file(temporary))
    columns = {name: [getattr(entry, name) for entry in entries] for name in Entry._fields}
    rows = len(arrays["features"])
    checksums = {kind: part.checksum for kind, part in files.items()}
    metadata = {"rows": str(rows), "checksums": json.dumps(checksums, sort_keys=True)}
    schema = pa.schema([(name, pa.int32() if name == "row" else pa.string()) for name in Entry._fields])
    with replacing(part_path(folder, number, "index")) as temporary:
        with temporary.open("wb") as file:  # opened here: Arrow takes no path that is not valid text
            pq.write_table(pa.table(columns, schema=schema.with_metadata(metadata)), file)
        files["index"] = Part(temporary.stat().st_size, hash_file(temporary))
    return Shard(_record(number, entries, rows, files), entries)


def read_shards(folder: Path, manifest: Manifest) -> list[Shard]:
    """All shards of the store, or an `ArtifactError` for the first that is not whole as far as a quick look tells."""
    if manifest.shards is None:
        shards = first_format_shards(folder, manifest.record)
        for shard in shards:
            check_sizes(folder, shard.record)
        return shards
    for record in manifest.shards:
        check_sizes(folder, record)
    return [read_shard(folder, record) for record in manifest.shards]


def read_shard(folder: Path, record: ShardRecord) -> Shard:
    """A shard by its index, if that has the bytes that were written."""
    path = part_path(folder, record.number, "index")
    data = _read(path, REPAIR)
    if hash_bytes(data) != record.files["index"].checksum:
        raise ArtifactError(f"{path} is damaged: its checksum differs from that in {RECORD}. {REPAIR}")
    _, entries = _parse_index(path, data, REPAIR)
    if _record(record.number, entries, record.rows, record.files) != record:
        raise ArtifactError(f"{path} holds other images than {RECORD} says. {REPAIR}")
    return Shard(record, entries)


def first_format_shards(folder: Path, record: StoreRecord) -> list[Shard]:
    """The shards of a store whose manifest does not list them: those whose index is there.

    Indices have no checksum in this format. In a store that was finished, a missing one shows by the gap in the
    numbers, or by its arrays.
    """
    files = [path.name for path in folder.iterdir() if re.fullmatch(_SHARD_FILE, path.name)]
    indexed = {int(name.partition(".")[0]) for name in files if name.endswith(_ENDINGS["index"])}
    seen = {int(name.partition(".")[0]) for name in files}
    if record.complete and (missing := sorted({*seen, *range(max(indexed, default=-1))} - indexed)):
        raise ArtifactError(f"{part_path(folder, missing[0], 'index')} is missing. {_ANEW}")
    return [_first_format_shard(folder, number, record) for number in sorted(indexed)]


def damaged_files(folder: Path, record: ShardRecord) -> list[str]:
    """The names of the shard's files whose bytes are not those that were written."""
    paths = {part_path(folder, record.number, kind): part for kind, part in record.files.items()}
    return [path.name for path, part in paths.items() if not _is_sound(path, part)]


def map_array(folder: Path, shard: Shard, kind: str, store: StoreRecord) -> npt.NDArray[Any]:
    """A shard's array, memory-mapped."""
    path = part_path(folder, shard.number, kind)
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. {REPAIR}") from error
    dimensions = {"features": 2, "patches": 3}[kind]
    wanted = (shard.rows, store.feature_dim, store.dtype, dimensions)
    if (*array.shape[:1], *array.shape[-1:], array.dtype.name, array.ndim) != wanted:
        raise ArtifactError(
            f"{path} holds {array.dtype} of shape {array.shape}, not {shard.rows} rows of {store.feature_dim} "
            f"{store.dtype} numbers. {REPAIR}"
        )
    return array


def remove_files(folder: Path, record: ShardRecord) -> None:
    """Remove the files of a shard that the manifest lists no more."""
    for kind in record.files:
        part_path(folder, record.number, kind).unlink(missing_ok=True)


def _is_sound(path: Path, part: Part) -> bool:
    try:
        return why_not_a_file(path) is None and path.stat().st_size == part.bytes and hash_file(path) == part.checksum
    except OSError:
        return False


def check_sizes(folder: Path, record: ShardRecord) -> None:
    """Raise `ArtifactError` unless the shard's files are there with the sizes that were written."""
    for kind, part in record.files.items():
        path = part_path(folder, record.number, kind)
        if (reason := why_not_a_file(path)) is not None:
            raise ArtifactError(f"{path} cannot be read: {reason}. {REPAIR}")
        if (size := path.stat().st_size) != part.bytes:
            raise ArtifactError(f"{path} has {size} bytes, not {part.bytes} as when it was written. {REPAIR}")


def _read(path: Path, advice: str) -> bytes:
    if (reason := why_not_a_file(path)) is not None:
        raise ArtifactError(f"{path} cannot be read: {reason}. {advice}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}. {advice}") from error


def _record(number: int, entries: list[Entry], rows: int, files: dict[str, Part]) -> ShardRecord:
    unreadable = sum(entry.error is not None for entry in entries)
    return ShardRecord(number, len(entries), rows, unreadable, hash_strings(entry.id for entry in entries), files)


def _parse_index(path: Path, data: bytes, advice: str) -> tuple[dict[str, str], list[Entry]]:
    """The index's metadata and entries, each value checked, or an `ArtifactError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        rows = int(metadata["rows"])
        _check_columns(table)
        columns = [table.column(name).to_pylist() for name in Entry._fields]
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. {advice}") from error
    entries = list(map(Entry._make, zip(*columns)))
    if (fault := _fault(entries, rows)) is not None:
        raise ArtifactError(f"{path}: {fault}. {advice}")
    return metadata, entries


def _check_columns(table: pa.Table) -> None:
    for name in Entry._fields:
        kind = str(table.schema.field(name).type)
        if kind != ("int32" if name == "row" else "string"):
            raise ValueError(f"the column {name!r} holds {kind}")


def _fault(entries: list[Entry], rows: int) -> str | None:
    """What is wrong with the entries, if anything."""
    counts = Counter(entry.id for entry in entries)
    for entry in entries:
        if entry.id is None or entry.stamp is None:
            return f"an image has no {'id' if entry.id is None else 'stamp'}"
        if counts[entry.id] > 1:
            return f"the image {entry.id!r} stands there twice"
        if entry.row is not None and (entry.content is None or entry.error is not None):
            return f"the image {entry.id!r} has a row of features and yet could not be read"
    if sorted(entry.row for entry in entries if entry.row is not None) != list(range(rows)):
        return f"the images' rows are not the numbers from 0 to {rows - 1}"
    return None


def _first_format_shard(folder: Path, number: int, record: StoreRecord) -> Shard:
    path = part_path(folder, number, "index")
    data = _read(path, _ANEW)
    metadata, entries = _parse_index(path, data, _ANEW)
    try:
        checksums = json.loads(metadata["checksums"])
        files = {kind: Part(_size(part_path(folder, number, kind)), str(checksums[kind])) for kind in record.kinds}
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{path}: its checksums cannot be read: {error}. {_ANEW}") from error
    files["index"] = Part(len(data), hash_bytes(data))
    return Shard(_record(number, entries, int(metadata["rows"]), files), entries)


def _size(path: Path) -> int:
    return path.stat().st_size if why_not_a_file(path) is None else 0


REPAIR = "Run `deltaenergy features` again with the same images: it encodes anew what is damaged."
_ANEW = "Without it, nobody knows which images its rows belong to. Make the store anew in another folder."
