"""A table file at an address: read in parts as it is gone through, each part tried again as pictures are.

Of a Parquet file, only the columns that are needed are fetched. They stand in many small pieces, one for each row
group: what lies close together is fetched at once, and several pieces are on their way at a time.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Sequence
from typing import IO, Any, cast

from deltaenergy.data.remote.blocks import PartFile, PartReader, shared_ahead, shared_part
from deltaenergy.data.remote.client import RemoteObject, get_range
from deltaenergy.data.remote.url import folder_of, suffix_of
from deltaenergy.data.seeking import Seeking

# The most that is asked for at a time.
PART_BYTES = 4 << 20
# Pieces of columns with no more than this between them are fetched together.
_GAP_BYTES = 1 << 16
# Pieces are small, and most of a request is waiting.
_AHEAD = 16


class RemoteTable:
    """What the readers of tables ask of a path, for an address."""

    def __init__(self, of: RemoteObject, part_bytes: int = PART_BYTES) -> None:
        self.object, self.address, self.part_bytes = of, of.url, part_bytes
        self.suffix = suffix_of(of.url)
        self.folder = folder_of(of.url)

    def __str__(self) -> str:
        return self.address

    def open(self, *, encoding: str, newline: str | None = None) -> IO[str]:
        """Its text, from the beginning."""
        file = io.BufferedReader(_Text(self.object), self.part_bytes)
        return io.TextIOWrapper(cast("IO[bytes]", file), encoding=encoding, newline=newline)

    def columns(self) -> RemoteColumns:
        """Its bytes, for one who will say which columns are read."""
        return RemoteColumns(self.object, self.part_bytes)


class _Text(Seeking):
    """A file that is read from the beginning to the end; a short one also from a server that gives no parts."""

    def __init__(self, of: RemoteObject) -> None:
        super().__init__(of.size or 0)
        self.of = of

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes, as many as there is room for."""
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        data = get_range(self.of, self.position, end)
        memoryview(buffer)[: len(data)] = data
        self.position += len(data)
        return len(data)


class RemoteColumns(PartFile):
    """A Parquet file of which some columns are read, row group by row group, and the end."""

    def __init__(self, of: RemoteObject, part_bytes: int = PART_BYTES) -> None:
        super().__init__(PartReader(of))
        self._part_bytes = part_bytes
        self._pieces: list[tuple[int, int]] = []

    def expect(self, metadata: Any, columns: Sequence[str]) -> None:
        """These columns will be read, from the first row group to the last."""
        self._pieces = _together(sorted(_chunks(metadata, columns)), self.size, self._part_bytes)

    def part(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`."""
        if self.reader.is_small:  # whoever reads the pictures will want all of it
            return self.reader.read(start, end)
        of, parts = self.reader.of, []
        while start < end:
            place = bisect.bisect_right(self._pieces, (start, self.size)) - 1
            first, last = self._pieces[place] if place >= 0 else (0, 0)
            if start < last:
                for piece in self._pieces[place + 1 : place + 1 + _AHEAD]:
                    shared_ahead(of, *piece)
                data = shared_part(of, first, last)[start - first : end - first]
            else:
                after = self._pieces[place + 1][0] if place + 1 < len(self._pieces) else end
                data = shared_part(of, start, min(end, after))
            parts.append(data)
            start += len(data)
        return b"".join(parts)


def _chunks(metadata: Any, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Where the columns stand in the file, in each row group."""
    found = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if any(chunk.path_in_schema == name or chunk.path_in_schema.startswith(f"{name}.") for name in columns):
                dictionary, data = chunk.dictionary_page_offset, chunk.data_page_offset
                start = dictionary if dictionary and dictionary < data else data
                found.append((start, start + chunk.total_compressed_size))
    return found


def _together(pieces: list[tuple[int, int]], size: int, most: int) -> list[tuple[int, int]]:
    """Pieces in order, those that are close as one, those that are large in several; damaged tables claim anything."""
    found: list[tuple[int, int]] = []
    for first, last in pieces:
        start, end = max(first, 0), min(last, size)
        if found and start - found[-1][1] <= _GAP_BYTES and end - found[-1][0] <= most:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
            continue
        start = max(start, found[-1][1]) if found else start
        found.extend((place, min(place + most, end)) for place in range(start, end, most))
    return found
