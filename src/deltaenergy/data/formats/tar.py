"""Images in tar archives, as WebDataset lays them out: files with equal names up to the first dot are one sample.

    0001.jpg  0001.cls  0002.jpg  0002.json …

Only headers and labels are read here. A picture is read from its place in the archive when it is needed, a large one
piece by piece, which is why the archive must not be compressed; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from deltaenergy.data.decode import Streamed, UnreadableImage
from deltaenergy.data.formats.tar_contents import TarContents, begins_compressed
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import check_file, why_not_a_file
from deltaenergy.data.seeking import Seeking
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
# Some formats are read whole to decode them. No picture within the limit of pixels needs more than this.
MAX_MEMBER_BYTES = 1 << 30
# Up to this size a picture is read at once: libraries read in many small steps, which cost more than a small picture.
AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class TarMember(Streamed):
    """One file inside an uncompressed archive."""

    archive: Path
    offset: int
    size: int
    stamp: str

    def open(self, *, at_once: int = AT_ONCE, most: int = MAX_MEMBER_BYTES) -> IO[bytes]:
        """The file's bytes, read from the archive as they are asked for, or all of them if they are few."""
        if self.size > most:
            raise UnreadableImage(f"too large: {self.size} bytes exceed the limit of {most} in an archive")
        if (reason := why_not_a_file(self.archive)) is not None:
            raise UnreadableImage(f"its archive cannot be read: {reason}")
        file = self.archive.open("rb", buffering=0)
        if os.fstat(file.fileno()).st_size < self.offset + self.size:
            file.close()
            raise UnreadableImage("the archive ends before the image does")
        if self.size <= at_once:
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
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    check_file(path, "The archive")
    contents = TarContents()
    try:
        # Headers are far apart: a small buffer reads less in vain.
        with path.open("rb", buffering=4096) as file:
            status = os.fstat(file.fileno())
            contents.read(file)
    except tarfile.ReadError as error:
        raise not_an_archive(repr(str(path)), error, _start_of(path)) from error
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    if not contents.names:
        raise InputError(f"The archive {str(path)!r} holds no image.")
    stamp = f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    yield from contents.items(
        path.as_posix(), lambda offset, size: TarMember(path, offset, size, f"{stamp}, at {offset}")
    )


def not_an_archive(shown: str, error: tarfile.ReadError, start: bytes) -> InputError:
    """The error for a file whose start is no archive's."""
    hint = " Compressed archives must be unpacked first." if begins_compressed(start) else ""
    return InputError(f"{shown} cannot be read as a tar archive ({error}).{hint}")


def compressed(shown: str) -> InputError:
    """The error for an archive with the name of a compressed one."""
    return InputError(
        f"{shown} is a compressed archive, whose pictures cannot be read from their place. Unpack it to a .tar first, "
        "as with gunzip or unzstd."
    )


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(6)
