"""Pictures inside Parquet files: a column of encoded bytes, or of the hub's records {bytes, path}.

A picture is read when it is needed. Parquet has no way to a single row: a column is decoded from the beginning of its
row group. Pictures are asked for in order, or nearly so, by several threads; so each file keeps a few places where it
goes on reading, and the last few batches that it read. Each page is decoded once, and memory is that of a few pages and
batches, however large the row groups are.
"""

from __future__ import annotations

import bisect
import io
import json
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from deltaenergy.data.decode import Streamed, UnreadableImage, open_file
from deltaenergy.data.regular import what_it_is, why_not_reached
from deltaenergy.data.remote.errors import Refused
from deltaenergy.errors import UnreachableError

if TYPE_CHECKING:
    import pyarrow as pa

# What a column of pictures may be called; it must also hold bytes, or records with bytes.
IMAGE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "content")
NO_IMAGE = "the table holds no image in this row"

# Of each file so many places are kept: hashing and encoding may go over the same rows, one behind the other.
_PLACES = 4
_FILES = 4
# Batches are of about this size, and those that a file keeps together of at most that, unless they are very few:
# threads do not ask in order, and to go back costs a row group.
BATCH_BYTES = 4 << 20
KEPT_BYTES = 32 << 20
_FEW = 4
_BATCH_ROWS = 1024
# Parquet is read through a buffer of this size; without one, a row group's column would be held whole.
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ParquetImage(Streamed):
    """The picture in one row of a Parquet file, counted from 0."""

    table: Path
    column: str
    row: int
    stamp: str

    def open(self) -> IO[bytes]:
        """The picture's bytes. A record without bytes names a file, which counts from the table's folder."""
        stamp = file_stamp(self.table)
        reader = column_reader(os.fspath(self.table), self.column, stamp, lambda: self.table)
        found = picture_of(reader.cell(self.row))
        return io.BytesIO(found) if isinstance(found, bytes) else open_file(self.table.parent / found)


def picture_of(cell: Any) -> bytes | str:
    """The bytes of a picture, or the file that the hub's record names instead."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if data is not None:
        return bytes(data)
    if isinstance(cell, dict) and cell.get("path"):
        return str(cell["path"])
    raise UnreadableImage(NO_IMAGE)


def file_stamp(path: Path) -> str:
    """What tells that a table may have changed. Raises `UnreadableImage` if it is no regular file any more."""
    try:
        status = os.stat(path)  # noqa: PTH116 (asked for each picture)
    except (OSError, ValueError) as error:
        raise UnreadableImage(f"its table cannot be read: {why_not_reached(path, error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableImage(f"its table cannot be read: {what_it_is(status.st_mode)}")
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def image_column(schema: pa.Schema) -> str | None:
    """The column that holds pictures: one that is called so, else one that the hub's library wrote as such."""
    by_lower = {name.strip().lower(): name for name in schema.names if schema.get_field_index(name) >= 0}
    called = [by_lower[name] for name in IMAGE_COLUMNS if name in by_lower]
    written = [name for name, feature in _hub_features(schema).items() if feature.get("_type") == "Image"]
    found = [name for name in called + written if name in by_lower.values() and _holds_bytes(schema.field(name).type)]
    return next(iter(found), None)


def class_names(schema: pa.Schema, column: str) -> Sequence[str] | None:
    """The names that the numbers of a column stand for, where the hub's library wrote them."""
    names = _hub_features(schema).get(column, {}).get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _hub_features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _holds_bytes(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_bytes(kind.field(place).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


@dataclass
class _Place:
    """Where reading a row group goes on: `row` is the next one of the file, and `last` holds those from `start` to it.

    Whoever comes behind begins inside a batch: the one before the place must not have to be read again.
    """

    group: int
    row: int
    batches: Iterator[pa.RecordBatch]
    start: int
    last: pa.Array | None = None


class ColumnReader:
    """One column of one file, read forward from a few places. `source` is a path, or a file at an address.

    `decoded` is how many rows were decoded so far.
    """

    def __init__(
        self,
        source: Path | IO[bytes] | io.RawIOBase,
        column: str,
        *,
        batch_bytes: int = BATCH_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        import pyarrow.parquet as pq

        self._batch_bytes, self._kept_bytes, self.decoded = batch_bytes, kept_bytes, 0
        self.column, self.lock = column, threading.Lock()
        self.file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES)
        groups = [self.file.metadata.row_group(group) for group in range(self.file.metadata.num_row_groups)]
        self.sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        self.starts = [0, *accumulate(group.num_rows for group in groups)]
        self.places: list[_Place] = []
        # By the first row of each batch; `damaged` is the first row of a group that cannot be read, and why.
        self.kept: OrderedDict[int, pa.Array] = OrderedDict()
        self.damaged: dict[int, tuple[int, str]] = {}

    def cell(self, row: int) -> Any:
        """What stands in a row."""
        with self.lock:
            array, start = self._batch(row)
        return array[row - start].as_py()

    def _batch(self, row: int) -> tuple[pa.Array, int]:
        for start in reversed(self.kept):
            if start <= row < start + len(self.kept[start]):
                self.kept.move_to_end(start)
                return self.kept[start], start
        if not 0 <= row < self.starts[-1]:
            raise UnreadableImage(f"the table has {self.starts[-1]} rows: it changed after it was listed")
        group = bisect.bisect_right(self.starts, row) - 1
        first, reason = self.damaged.get(group, (self.starts[-1], ""))
        if row >= first:
            raise UnreadableImage(reason)
        place = self._nearest(group, row)
        while row >= place.row:
            self._advance(place)
        return place.last, place.start

    def _nearest(self, group: int, row: int) -> _Place:
        """The place from which the way to `row` is shortest, a new one if it lies behind them all."""
        before = [place for place in self.places if place.group == group and place.start <= row]
        if before:
            place = max(before, key=lambda place: place.start)
            self.places.remove(place)
        else:
            rows, size = self.sizes[group]
            count = max(1, min(_BATCH_ROWS, self._batch_bytes * rows // max(1, size)))
            batches = self.file.iter_batches(count, row_groups=[group], columns=[self.column], use_threads=False)
            place = _Place(group, self.starts[group], batches, self.starts[group])
        self.places = [*self.places[-(_PLACES - 1) :], place]
        return place

    def _advance(self, place: _Place) -> None:
        """Read the next batch."""
        try:
            array = next(place.batches).column(0)
        except (Refused, UnreachableError) as failure:  # which says nothing of the table's bytes
            self.places.remove(place)
            if isinstance(failure, UnreachableError):
                raise
            raise UnreadableImage(f"its table cannot be read: {failure.reason}") from failure
        except (OSError, ValueError, StopIteration, NotImplementedError, KeyError, IndexError) as error:
            reason = f"the table is damaged from row {place.row} on ({_first_line(error) or 'it ends there'})"
            self.damaged[place.group] = (place.row, reason)
            raise UnreadableImage(reason) from error
        place.start, place.row, place.last = place.row, place.row + len(array), array
        self.decoded += len(array)
        if place.row >= self.starts[place.group + 1]:
            self.places.remove(place)  # it leads nowhere, and holds the last page
        self._keep(place.start, array)

    def _keep(self, start: int, array: pa.Array) -> None:
        self.kept[start] = array
        self.kept.move_to_end(start)
        total = sum(kept.nbytes for kept in self.kept.values())
        while total > self._kept_bytes and len(self.kept) > _FEW:
            total -= self.kept.popitem(last=False)[1].nbytes


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:100]


def forget_readers() -> None:
    """Open every table anew."""
    with _readers_lock:
        _readers.clear()


_readers: OrderedDict[tuple[str, str, str], ColumnReader] = OrderedDict()
_readers_lock = threading.Lock()


def column_reader(
    where: str, column: str, stamp: str, source: Callable[[], Path | IO[bytes] | io.RawIOBase]
) -> ColumnReader:
    """The column of a file that is as its stamp says, open; the last few stay so. Raises `UnreadableImage`."""
    key = (where, column, stamp)
    with _readers_lock:
        reader = _readers.get(key)
        if reader is None:
            try:
                reader = ColumnReader(source(), column)
            except Refused as refused:
                raise UnreadableImage(f"its table cannot be read: {refused.reason}") from refused
            except (OSError, ValueError) as error:
                raise UnreadableImage(
                    f"its table cannot be read: {(str(error).splitlines() or [''])[0][:100]}"
                ) from error
        _readers[key] = reader
        _readers.move_to_end(key)
        while len(_readers) > _FILES:
            _readers.popitem(last=False)
        return reader
