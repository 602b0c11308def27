"""Images in tar archives, as WebDataset lays them out: files with equal names up to the first dot are one sample.

    0001.jpg  0001.cls  0002.jpg  0002.json …

The class of a sample is the text of its `.cls` file, or the entry `label`, `class` or `cls` of its `.json` file.
Only headers and those small files are read here. A picture is read from its place in the archive when it is needed,
a large one piece by piece, which is why the archive must not be compressed; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from deltaenergy.data.decode import EXTENSIONS, Refusal, Streamed, UnreadableImage
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import check_file, why_not_a_file
from deltaenergy.data.seeking import Seeking
from deltaenergy.data.tar_headers import Member, TarHeaders
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are no labels.
_MAX_LABEL_BYTES = 1 << 20
# Some formats are read whole to decode them. No picture within the limit of pixels needs more than this.
MAX_MEMBER_BYTES = 1 << 30
# Up to this size a picture is read at once: libraries read in many small steps, which cost more than a small picture.
_AT_ONCE = 1 << 20
_OUT_OF_REACH = 1 << 60
_LINK = "a link or sparse file inside the archive"


@dataclass(frozen=True, slots=True)
class TarMember(Streamed):
    """One file inside an uncompressed archive."""

    archive: Path
    offset: int
    size: int
    stamp: str

    def open(self) -> IO[bytes]:
        """The file's bytes, read from the archive as they are asked for."""
        if self.size > MAX_MEMBER_BYTES:
            raise UnreadableImage(f"too large: {self.size} bytes exceed the limit of {MAX_MEMBER_BYTES} in an archive")
        if (reason := why_not_a_file(self.archive)) is not None:
            raise UnreadableImage(f"its archive cannot be read: {reason}")
        file = self.archive.open("rb", buffering=0)
        if os.fstat(file.fileno()).st_size < self.offset + self.size:
            file.close()
            raise UnreadableImage("the archive ends before the image does")
        if self.size <= _AT_ONCE:
            with file:
                file.seek(self.offset)
                return io.BytesIO(file.read(self.size))
        return cast("IO[bytes]", io.BufferedReader(_Part(file, self.offset, self.size)))


class _Part(Seeking):
    """Some consecutive bytes of an open file as a file of their own, closed with it. It has no file number, through
    which libraries would read the whole.
    """

    def __init__(self, file: io.FileIO, offset: int, size: int) -> None:
        super().__init__(size)
        self.file, self.offset = file, offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self.size - self.position))
        self.file.seek(self.offset + self.position)
        count = self.file.readinto(memoryview(buffer)[:wanted]) or 0
        self.position += count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def tar_images(path: Path) -> Iterator[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest.

    One archive's list is held at a time, for a label may stand anywhere in it: about a hundred bytes an image.
    """
    check_file(path, "The archive")
    contents = _Contents()
    try:
        # Headers are far apart: a small buffer reads less in vain.
        with path.open("rb", buffering=4096) as file:
            status = os.fstat(file.fileno())
            damage = contents.read(file)
    except tarfile.ReadError as error:
        hint = " Compressed archives must be unpacked first." if _is_compressed(path) else ""
        raise InputError(f"{str(path)!r} cannot be read as a tar archive ({error}).{hint}") from error
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    if not contents.names:
        raise InputError(f"The archive {str(path)!r} holds no image.")
    shown, stamp = path.as_posix(), f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    for name, offset, size in zip(contents.names, contents.offsets, contents.sizes):
        part = TarMember(path, offset, size, f"{stamp}, at {offset}") if size >= 0 else Refusal(_LINK)
        yield ImageItem(f"{shown}/{name}", part, contents.labels.get(_key(name)))
    if damage is not None:
        yield ImageItem(f"{shown} (the rest)", Refusal(f"the archive is damaged: {damage}"))


class _Contents:
    """The pictures of an archive and their labels, as far as it can be read. What is no plain file has size −1."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.offsets, self.sizes = array("q"), array("q")
        self.labels: dict[str, str] = {}

    def read(self, file: IO[bytes]) -> str | None:
        """Take in all members; what is wrong with the rest, if anything. An unreadable start is a `ReadError`."""
        headers = TarHeaders(file)
        for member in headers:
            suffix = posixpath.splitext(member.name)[1].lower()
            if suffix in EXTENSIONS and not member.folder:
                self.names.append(member.name)
                # Damaged headers claim anything; what is out of reach stays so.
                self.offsets.append(min(member.offset, _OUT_OF_REACH))
                self.sizes.append(min(max(member.size, 0), _OUT_OF_REACH) if member.plain else -1)
            elif member.plain and suffix in {".cls", ".json"} and 0 <= member.size <= _MAX_LABEL_BYTES:
                self._take_label(member, suffix, file)
        return headers.damage

    def _take_label(self, member: Member, suffix: str, file: IO[bytes]) -> None:
        file.seek(member.offset)
        text = file.read(member.size).decode("utf-8", errors="replace").strip()
        label = text or None if suffix == ".cls" else _json_label(text)
        if label is not None:
            self.labels[_key(member.name)] = label


def _json_label(text: str) -> str | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict):
        for key in _LABEL_KEYS:
            if isinstance(record.get(key), str | int):
                return str(record[key])
    return None


def _key(name: str) -> str:
    """The sample that a file belongs to: its name up to the first dot of its last part."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(6)
    return start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
