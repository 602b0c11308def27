"""The members of an uncompressed tar archive, from its headers.

Python's tarfile takes 30 to 80 µs per member, which is minutes for a million. Headers of the common kinds (POSIX and
GNU, plain, with a pax header before, or with a long name) are read here, in about a fifth of that. At the first header
that is not plainly one of these, tarfile continues from there: only it decides what is rare, damaged, or the end.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, NamedTuple, cast

# Headers with long names or attributes; tarfile would read whatever length a damaged one claims.
_MAX_HEADER_BYTES = 1 << 16
_BLOCK = tarfile.BLOCKSIZE
_ENCODING = sys.getfilesystemencoding()

# The numbers of a header as the usual programs write them: mode, owner, group, size, time, checksum and kind; devices.
# What does not match may be sound, and is left to tarfile.
_SHORT = rb"(?:[0-7]{7}[ \0]|[0-7]{6} \0|\0{8})"
_LONG = rb"(?:[0-7]{11}[ \0]|\0{12})"
_NUMBERS = re.compile(_SHORT * 3 + rb"([0-7]{11})[ \0]" + _LONG + rb"([0-7]{6})(?:\0 | \0)([\x000-6xL])")
_DEVICES = re.compile(_SHORT * 2)
_RECORD = re.compile(rb"(\d{1,5}) ([^=]+)=")
# Records of a pax header that say where a member starts, how large it is or how it is called, otherwise than plainly.
_RARE = (b"GNU.", b"hdrcharset")
_FILES, _FOLDER, _PAX, _LONG_NAME = (b"0", b"\0"), b"5", b"x", b"L"


class Member(NamedTuple):
    """One entry of an archive: `plain` for a file whose bytes are in one piece at `offset`."""

    name: str
    plain: bool
    folder: bool
    offset: int
    size: int


class _NotPlain(Exception):
    """The header is left to tarfile."""


@dataclass
class TarHeaders:
    """The members of an open archive, in its order. `damage` says, once they were gone through, what is wrong with the
    rest, if anything. An archive whose start is unreadable is a `tarfile.ReadError`.
    """

    file: IO[bytes]
    damage: str | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Member]:
        length = self.file.seek(0, io.SEEK_END)
        offset = 0
        while True:
            try:
                member, after = self._plain_member(offset)
            except _NotPlain:
                break
            yield member
            offset = after
            if offset > length:
                self.damage = "unexpected end of data"
                return
        yield from self._by_tarfile(offset)

    def _plain_member(self, offset: int) -> tuple[Member, int]:
        """The member whose first header is at `offset`, and where the next one is."""
        name, prefix, size, kind = self._header(offset)
        told: dict[bytes, bytes] = {}
        if kind in (_PAX, _LONG_NAME):
            if not size <= _MAX_HEADER_BYTES:
                raise _NotPlain
            body = self.file.read(_blocks(size))
            told = _pax_records(body[:size]) if kind == _PAX else {b"path": body.partition(b"\0")[0]}
            offset += _BLOCK + _blocks(size)
            name, prefix, size, kind = self._header(offset)
            if kind in (_PAX, _LONG_NAME):
                raise _NotPlain
        if b"path" in told:
            name, prefix = told[b"path"], b""
        if b"size" in told:
            if not told[b"size"].isdigit():
                raise _NotPlain
            size = int(told[b"size"])
        folder = kind == _FOLDER or (kind == b"\0" and name.endswith(b"/"))
        plain = kind in _FILES and not folder
        if folder:
            name = name.rstrip(b"/")
        full = prefix + b"/" + name if prefix else name
        data = offset + _BLOCK
        member = Member(full.decode(_ENCODING, "surrogateescape"), plain, folder, data, size)
        return member, data + _blocks(size) if plain else data

    def _header(self, offset: int) -> tuple[bytes, bytes, int, bytes]:
        self.file.seek(offset)
        block = self.file.read(_BLOCK)
        numbers = _NUMBERS.match(block, 100)
        if numbers is None or len(block) < _BLOCK or _DEVICES.match(block, 329) is None:
            raise _NotPlain
        size, checksum, kind = numbers.groups()
        # The checksum counts its own field as blanks.
        if sum(block) - sum(block[148:156]) + 256 != int(checksum, 8):
            raise _NotPlain
        return block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0], int(size, 8), kind

    def _by_tarfile(self, start: int) -> Iterator[Member]:
        self.file.seek(start)
        end = -1
        # tarfile's parsers raise more than its own errors for damaged headers.
        try:
            archive = tarfile.TarFile(fileobj=cast("IO[bytes]", _Pieces(self.file)))
        except (tarfile.TarError, ValueError, LookupError, RecursionError, OverflowError) as error:
            if not start:
                raise tarfile.ReadError(str(error) or "it cannot be read") from error
            self.damage = str(error) or "it cannot be read"
            return
        with archive:
            try:
                for member in archive:
                    # A damaged length can lead backwards, and tarfile would read the same members forever.
                    if member.offset <= end:
                        self.damage = f"a header leads back to byte {member.offset}"
                        return
                    end = member.offset
                    plain = member.isreg() and not member.issparse()
                    yield Member(member.name, plain, member.isdir(), member.offset_data, member.size)
            except (tarfile.TarError, OSError, ValueError, LookupError, RecursionError, OverflowError) as error:
                self.damage = str(error) or "it cannot be read"
                return
            # tarfile takes a cut or garbled header for the end.
            self.file.seek(archive.offset)
            if self.file.read(_BLOCK).strip(b"\0"):
                self.damage = f"no header at byte {archive.offset}"


class _Pieces:
    """A file as tarfile reads it for headers: in small pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.tell, self.seek = file, file.tell, file.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims a length of {size} bytes")
        return self.file.read(size)


def _blocks(size: int) -> int:
    """The number of bytes, rounded up to whole blocks."""
    return -(-size // _BLOCK) * _BLOCK


def _pax_records(body: bytes) -> dict[bytes, bytes]:
    """Name and size, where a pax header has them; it must consist of whole records."""
    told: dict[bytes, bytes] = {}
    position = 0
    while position < len(body):
        match = _RECORD.match(body, position)
        if match is None:
            raise _NotPlain
        after, key = position + int(match[1]), match[2]
        value = body[match.end() : after - 1]
        if not match.end() < after <= len(body) or body[after - 1 : after] != b"\n" or key.startswith(_RARE):
            raise _NotPlain
        if key == b"path":
            told[key] = value.rstrip(b"/")
        elif key == b"size":
            told[key] = value
        position = after
    return told
