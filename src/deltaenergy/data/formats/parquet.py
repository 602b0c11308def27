"""Images inside Parquet files: a column of encoded bytes, or of records {bytes, path} as on the Hugging Face Hub.

An image is read when it is needed. Parquet has no access to a single row: a column is decoded from the start of its row
group. Images are requested in order, or nearly so, by several threads; so each file keeps a few positions from which it
reads forward, and the last few batches that it read. Each page is decoded once, and memory is that of a few pages and
batches, however large the row groups are.
"""

from __future__ import annotations

import bisect
import io
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from deltaenergy.core.lru import LruCache
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.file import File, LocalFile, reason_of
from deltaenergy.data.remote.blocks import BlockReader, RangeReader
from deltaenergy.data.remote.errors import Refused
from deltaenergy.errors import InputError, UnreachableError, first_line

if TYPE_CHECKING:
    import pyarrow as pa

# What a column of images may be called; it must also contain bytes, or records with bytes.
IMAGE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "content")
NO_IMAGE = "the table has no image in this row"

# Of each file this many positions are kept: two who read the same file may be at different rows.
_POSITIONS = 4
_FILES = 4
# Batches are of about this size, and those that a file keeps together of at most that, unless they are very few:
# threads do not ask in order, and to go back costs a row group.
BATCH_BYTES = 4 << 20
KEPT_BYTES = 32 << 20
_FEW = 4
_BATCH_ROWS = 1024
# Parquet is read through a buffer of this size; without one, a row group's column would be held whole.
BUFFER_BYTES = 1 << 20
# Columns at URLs: ranges with no more than this between them are requested together, and no more than that at a time.
_GAP_BYTES = 1 << 16
_RANGE_BYTES = 4 << 20


class ParquetCell(NamedTuple):
    """An image in a column of a Parquet file; rows are counted from 0."""

    file: File
    column: str
    row: int

    @property
    def is_remote(self) -> bool:
        return self.file.is_remote

    @property
    def stamp(self) -> str:
        """A row is as old as its table."""
        return f"{self.file.stamp}, row {self.row}"

    def open(self) -> IO[bytes]:
        """The image's bytes. A record without bytes names a file, as `File.sibling` reads it.

        Raises `UnreadableImage`, or `UnreachableError` if a store is out of reach.
        """
        try:
            content = cell_content(_reader(self.file, self.column).cell(self.row), self.file.sibling)
        except InputError as error:
            raise UnreadableImage(str(error)) from error
        return io.BytesIO(content) if isinstance(content, bytes) else content.open()


def cell_content(cell: Any, file_of: Callable[[str], File]) -> bytes | File:
    """The bytes of an image, or the file that a record of the Hugging Face Hub names instead."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if isinstance(cell, dict) and isinstance(cell.get("path"), str):
        return file_of(cell["path"])
    raise UnreadableImage(NO_IMAGE)


def parquet_file(file: File, *, columns: Sequence[str] | None = None) -> Any:
    """A Parquet file, open, for one who reads it from the first row to the last: pyarrow's `ParquetFile`.

    Without a buffer, a row group's column would be held whole. Of a file at a URL, `columns` are requested ahead.
    """
    import pyarrow.parquet as pq

    options = {"pre_buffer": False, "buffer_size": BUFFER_BYTES}
    if isinstance(file, LocalFile):
        return pq.ParquetFile(file.path, **options)
    if columns is None:
        return pq.ParquetFile(BlockReader(file).file(), **options)
    reader = RangeReader(file)
    opened = pq.ParquetFile(reader.file(), **options)
    reader.ranges = column_ranges(opened.metadata, columns, reader.size)
    return opened


def column_ranges(metadata: Any, columns: Sequence[str], size: int) -> list[tuple[int, int]]:
    """Where columns are in a file of this size, row group by row group: those close together as one, large ones in
    several. Damaged tables claim anything.
    """
    chunks = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.partition(".")[0] in columns or chunk.path_in_schema in columns:
                dictionary, data = chunk.dictionary_page_offset, chunk.data_page_offset
                start = dictionary if dictionary and dictionary < data else data
                chunks.append((max(start, 0), min(start + chunk.total_compressed_size, size)))
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(chunks):
        if ranges and start - ranges[-1][1] <= _GAP_BYTES and end - ranges[-1][0] <= _RANGE_BYTES:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            continue
        start = max(start, ranges[-1][1]) if ranges else start
        ranges.extend((first, min(first + _RANGE_BYTES, end)) for first in range(start, end, _RANGE_BYTES))
    return ranges


def image_column(schema: pa.Schema) -> str | None:
    """The column with images: one that is called so, else one that the datasets library marked as such."""
    by_lower = {name.strip().lower(): name for name in schema.names if schema.get_field_index(name) >= 0}
    called = [by_lower[name] for name in IMAGE_COLUMNS if name in by_lower]
    written = [name for name, feature in _hub_features(schema).items() if feature.get("_type") == "Image"]
    found = [name for name in called + written if name in by_lower.values() and _has_bytes(schema.field(name).type)]
    return next(iter(found), None)


def class_names(schema: pa.Schema, column: str) -> Sequence[str] | None:
    """The names that the numbers of a column stand for, where the datasets library wrote them."""
    names = _hub_features(schema).get(column, {}).get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _hub_features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _has_bytes(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        position = kind.get_field_index("bytes")
        return position >= 0 and _has_bytes(kind.field(position).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


@dataclass
class _Position:
    """Where a row group is being read: `row` is the next one of the file."""

    group: int
    row: int
    batches: Iterator[pa.RecordBatch]


class ColumnReader:
    """One column of one file, read forward from a few positions. `decoded` is how many rows were decoded so far."""

    def __init__(
        self, file: File, column: str, *, batch_bytes: int = BATCH_BYTES, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._batch_bytes, self._kept_bytes, self.decoded = batch_bytes, kept_bytes, 0
        self.column, self.lock = column, threading.Lock()
        self.file = parquet_file(file)
        groups = [self.file.metadata.row_group(group) for group in range(self.file.metadata.num_row_groups)]
        self.sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        self.starts = [0, *accumulate(group.num_rows for group in groups)]
        self.positions: list[_Position] = []
        # By the first row of each batch; `damaged` is the first row of a group that cannot be read, and why.
        self.kept: OrderedDict[int, pa.Array] = OrderedDict()
        self.damaged: dict[int, tuple[int, str]] = {}

    def cell(self, row: int) -> Any:
        if not 0 <= row < self.starts[-1]:
            raise UnreadableImage(f"the table has {self.starts[-1]} rows: it changed after it was listed")
        with self.lock:
            while True:
                for start, array in reversed(self.kept.items()):
                    if start <= row < start + len(array):
                        self.kept.move_to_end(start)
                        return array[row - start].as_py()
                self._read_towards(row)

    def _read_towards(self, row: int) -> None:
        """Read one more batch on the way to a row that is not kept."""
        group = bisect.bisect_right(self.starts, row) - 1
        first, reason = self.damaged.get(group, (self.starts[-1], ""))
        if row >= first:
            raise UnreadableImage(reason)
        position = self._nearest(group, row)
        try:
            array = next(position.batches).column(0)
        except (Refused, UnreachableError) as failure:  # which says nothing of the table's bytes
            self.positions.remove(position)
            if isinstance(failure, UnreachableError):
                raise
            raise UnreadableImage(f"its table cannot be read: {failure.reason}") from failure
        except (OSError, ValueError, StopIteration, NotImplementedError, KeyError, IndexError) as error:
            why = "it ends there" if isinstance(error, StopIteration) else first_line(error)[:100]
            reason = f"the table is damaged from row {position.row} on ({why})"
            self.damaged[group] = (position.row, reason)
            raise UnreadableImage(reason) from error
        self.decoded += len(array)
        self._keep(position.row, array)
        position.row += len(array)
        if position.row >= self.starts[group + 1]:
            self.positions.remove(position)  # it leads nowhere, and keeps the last page

    def _nearest(self, group: int, row: int) -> _Position:
        """The position from which the way to `row` is shortest, a new one if there is none before it."""
        before = [position for position in self.positions if position.group == group and position.row <= row]
        if before:
            position = max(before, key=lambda position: position.row)
            self.positions.remove(position)
        else:
            rows, size = self.sizes[group]
            count = max(1, min(_BATCH_ROWS, self._batch_bytes * rows // max(1, size)))
            batches = self.file.iter_batches(count, row_groups=[group], columns=[self.column], use_threads=False)
            position = _Position(group, self.starts[group], batches)
        self.positions = [*self.positions[-(_POSITIONS - 1) :], position]
        return position

    def _keep(self, start: int, array: pa.Array) -> None:
        """Keep a batch, and of the others those used last. One that a position has just left stays: who comes to it
        later starts inside it.
        """
        self.kept[start] = array
        left = {start + len(array), *(position.row for position in self.positions)}
        total = sum(kept.nbytes for kept in self.kept.values())
        for first, kept in list(self.kept.items()):
            if total <= self._kept_bytes or len(self.kept) <= _FEW:
                break
            if first + len(kept) not in left:
                total -= self.kept.pop(first).nbytes


_readers: LruCache[tuple[File, str], ColumnReader] = LruCache(_FILES)
_opening = threading.Lock()


def close_readers() -> None:
    """Open every table again."""
    _readers.clear()


def _reader(file: File, column: str) -> ColumnReader:
    """The column of a file, open while the file does not change; the last few stay so. Raises `UnreadableImage`."""
    try:
        file = file.described()
        with _opening:
            return _readers.get((file, column)) or _readers.put((file, column), ColumnReader(file, column))
    except (UnreadableImage, OSError, ValueError) as error:
        raise UnreadableImage(f"its table cannot be read: {reason_of(error)[:100]}") from error
