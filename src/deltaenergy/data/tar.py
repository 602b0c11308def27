"""Images in tar archives, as WebDataset lays them out: files with equal names up to the first dot are one sample.

    0001.jpg  0001.cls  0002.jpg  0002.json …

The class of a sample is the text of its `.cls` file, or the entry `label`, `class` or `cls` of its `.json` file.
Only headers and those small files are read here. A picture is read from its place in the archive when it is needed,
piece by piece, which is why the archive must not be compressed; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from deltaenergy.data.decode import EXTENSIONS, ImageSource, Refusal, Streamed, UnreadableImage
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import check_file, why_not_a_file
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are no labels.
_MAX_LABEL_BYTES = 1 << 20
# Some formats are read whole to decode them. No picture within the limit of pixels needs more than this.
MAX_MEMBER_BYTES = 1 << 30
# Headers with long names or attributes; tarfile would read whatever length a damaged one claims.
_MAX_HEADER_BYTES = 1 << 16


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
        return cast("IO[bytes]", io.BufferedReader(_Part(file, self.offset, self.size)))


class _Part(io.RawIOBase):
    """Some consecutive bytes of an open file as a file of their own, closed with it. It has no file number, through
    which libraries would read the whole.
    """

    def __init__(self, file: io.FileIO, offset: int, size: int) -> None:
        self.file, self.offset, self.size, self.position = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("seek before the beginning of the file")
        self.position = start + offset
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self.size - self.position))
        self.file.seek(self.offset + self.position)
        count = self.file.readinto(memoryview(buffer)[:wanted]) or 0
        self.position += count
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def tar_images(path: Path) -> list[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    check_file(path, "The archive")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            contents = _Contents(path, f"{status.st_size} bytes, {status.st_mtime_ns} ns")
            damage = contents.read(file)
    except tarfile.ReadError as error:
        hint = " Compressed archives must be unpacked first." if _is_compressed(path) else ""
        raise InputError(f"{str(path)!r} cannot be read as a tar archive ({error}).{hint}") from error
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    items = [
        ImageItem(f"{path.as_posix()}/{name}", source, contents.labels.get(_key(name)))
        for name, source in contents.images
    ]
    if not items:
        raise InputError(f"The archive {str(path)!r} holds no image.")
    if damage is not None:
        items.append(ImageItem(f"{path.as_posix()} (the rest)", Refusal(f"the archive is damaged: {damage}")))
    return items


class _Contents:
    """The pictures of an archive and their labels, as far as it can be read."""

    def __init__(self, path: Path, stamp: str) -> None:
        self.path, self.stamp = path, stamp
        self.images: list[tuple[str, ImageSource]] = []
        self.labels: dict[str, str] = {}

    def read(self, file: io.BufferedReader) -> str | None:
        """Take in all members; what is wrong with the rest, if anything. An unreadable start is a `ReadError`."""
        end = -1
        with tarfile.open(fileobj=cast("IO[bytes]", _Headers(file)), mode="r:") as archive:
            try:
                for member in archive:
                    # A damaged length can lead backwards, and tarfile would read the same members for ever.
                    if member.offset <= end:
                        return f"a header leads back to byte {member.offset}"
                    end = member.offset
                    self._take(member, file)
            # tarfile's parsers raise more than its own errors for damaged headers.
            except (tarfile.TarError, OSError, ValueError, LookupError, RecursionError, OverflowError) as error:
                return str(error) or "it cannot be read"
            # tarfile takes a cut or garbled header for the end.
            file.seek(archive.offset)
            return f"no header at byte {archive.offset}" if file.read(tarfile.BLOCKSIZE).strip(b"\0") else None

    def _take(self, member: tarfile.TarInfo, file: io.BufferedReader) -> None:
        suffix = PurePosixPath(member.name).suffix.lower()
        plain = member.isreg() and not member.issparse()
        if suffix in EXTENSIONS and not member.isdir():
            stamp = f"{self.stamp}, at {member.offset_data}"
            part = TarMember(self.path, member.offset_data, member.size, stamp)
            self.images.append((member.name, part if plain else Refusal("a link or sparse file inside the archive")))
        elif plain and suffix in {".cls", ".json"} and 0 <= member.size <= _MAX_LABEL_BYTES:
            file.seek(member.offset_data)
            text = file.read(member.size).decode("utf-8", errors="replace").strip()
            label = text or None if suffix == ".cls" else _json_label(text)
            if label is not None:
                self.labels[_key(member.name)] = label


class _Headers:
    """A file as tarfile reads it for headers alone: in small pieces."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.file, self.tell, self.seek = file, file.tell, file.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims a length of {size} bytes")
        return self.file.read(size)


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
