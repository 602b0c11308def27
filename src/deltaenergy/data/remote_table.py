"""A table file at an address: read in parts as it is gone through, each part tried again as pictures are."""

from __future__ import annotations

import io
from typing import IO, cast

from deltaenergy.data.addresses import ending_of
from deltaenergy.data.remote import Refused, describe, fetch
from deltaenergy.data.seeking import Seeking
from deltaenergy.errors import InputError

# Asked for at a time.
_PART_BYTES = 4 << 20


class RemoteTable:
    """What the readers of tables ask of a path, for an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.suffix = ending_of(address)
        self.folder = address.partition("?")[0].rpartition("/")[0]
        self._size: int | None = None

    def __str__(self) -> str:
        return self.address

    def open(self, *, encoding: str, newline: str | None = None) -> IO[str]:
        """Its text, from the beginning."""
        return io.TextIOWrapper(cast("IO[bytes]", self.bytes()), encoding=encoding, newline=newline)

    def bytes(self) -> io.BufferedReader:
        """Its bytes, from the beginning; any part can be read."""
        if self._size is None:
            try:
                size = describe(self.address).get("size")
            except Refused as refused:
                raise InputError(f"The table {self.address} cannot be read: {refused}.") from refused
            if size is None:
                raise InputError(f"The table {self.address} cannot be read: its server does not tell its size.")
            self._size = int(size)
        return io.BufferedReader(_RemoteBytes(self.address, self._size), _PART_BYTES)


class _RemoteBytes(Seeking):
    """An object as a file that can be read anywhere."""

    def __init__(self, address: str, size: int) -> None:
        super().__init__(size)
        self.address = address

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        data = fetch(self.address, self.position, end)
        if not data:
            raise OSError("it became shorter while it was read")
        memoryview(buffer)[: len(data)] = data
        self.position += len(data)
        return len(data)
