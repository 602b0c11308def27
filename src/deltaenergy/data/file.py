"""A file, here or at a URL: what the readers of images, tables and archives need of one.

    file_at("photos/a.jpg")    file_at("s3://bucket/a.jpg")

A local file is asked what it is before it is opened: opening a named pipe would wait forever, and a device may have no
end. A file at a URL is fetched whole where all of it is needed, and else in blocks that all threads share.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, ClassVar, NamedTuple, TypeAlias, cast

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.pixel_budget import PixelBudget
from deltaenergy.data.remote.blocks import BlockReader, RangeFile, shared_reader
from deltaenergy.data.remote.client import RemoteObject, get, head, request_limits
from deltaenergy.data.remote.errors import Refused
from deltaenergy.data.remote.url import checked_url, folder_of, is_url, suffix_of
from deltaenergy.errors import first_line

# The stamp of a file at a URL that was not listed: nothing shows whether it changed.
UNLISTED = "not listed"
# Some formats are read whole to decode them. No image within the limit of pixels needs more than this.
MAX_SLICE_BYTES = 1 << 30
# Libraries read in many small steps, which cost more than to read a small image at once.
_BUFFER_BYTES = 1 << 18
# Of images at URLs whose size is known before, no more bytes than this are held at a time, by all threads together.
_BYTES = PixelBudget(1 << 29)
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine.

    Attributes:
        path: where it is.
        listed: its stamp when the images inside it were listed; None for a file that is an image itself.
    """

    path: Path
    listed: str | None = None

    is_remote: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.path.as_posix()

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()

    @property
    def stamp(self) -> str:
        """What shows without reading it whether it may have changed."""
        if self.listed is not None:
            return self.listed
        try:
            return _stamp(os.stat(self.path))  # noqa: PTH116 (a method of Path takes longer)
        except (OSError, ValueError):
            return "missing"

    def described(self) -> LocalFile:
        """The same with its stamp as it is now. Raises `UnreadableImage` if it is not a regular file."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except (OSError, ValueError) as error:
            raise UnreadableImage(why_not_reached(self.path, error)) from error
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImage(what_it_is(status.st_mode))
        return LocalFile(self.path, _stamp(status))

    def open(self) -> IO[bytes]:
        """Its bytes. Raises `UnreadableImage`; what is not a regular file is refused unopened."""
        return self.described().path.open("rb")

    def open_parts(self) -> io.BufferedReader:
        """Its bytes for one who reads some of them. Raises `OSError`."""
        # Headers of archives are far apart: a small buffer reads less in vain.
        return io.BufferedReader(io.FileIO(self.path), 4096)

    def open_slice(self, offset: int, size: int, *, most: int = MAX_SLICE_BYTES) -> IO[bytes]:
        """Some consecutive bytes, read as they are requested. Raises `UnreadableImage`."""
        if size > most:
            raise UnreadableImage(f"too large: {size} bytes exceed the limit of {most} in an archive")
        try:
            self.described()
        except UnreadableImage as error:
            raise UnreadableImage(f"its archive cannot be read: {error}") from error
        file = self.path.open("rb", buffering=0)
        if os.fstat(file.fileno()).st_size < offset + size:
            file.close()
            raise UnreadableImage("the archive ends before the image does")

        def read(start: int, end: int) -> bytes:
            file.seek(offset + start)
            return file.read(max(0, end - start))

        # Without a file number, through which libraries would read the whole archive.
        slice_file = RangeFile(size, read, file.close)
        return cast("IO[bytes]", io.BufferedReader(slice_file, max(1, min(size, _BUFFER_BYTES))))

    def sibling(self, name: str) -> File:
        """The file that a name in this one means: a URL, or a path that starts at its folder."""
        return RemoteFile(checked_url(name)) if is_url(name) else LocalFile(self.path.parent / name)


@dataclass(frozen=True, slots=True)
class RemoteFile(RemoteObject):
    """A file on an object store or web server; with its size and version where it was listed."""

    is_remote: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.url

    @property
    def suffix(self) -> str:
        return suffix_of(self.url)

    @property
    def stamp(self) -> str:
        """What shows without reading it whether it may have changed: its size and version."""
        if self.version is None:
            return UNLISTED
        return f"{self.size} bytes, {f'tag {self.version}' if self.version else 'undated'}"

    def described(self) -> RemoteFile:
        """The same, as it was listed, or else as it is now. Raises `Refused`."""
        return self if self.version is not None else RemoteFile(**asdict(head(self.url)))

    def open(self) -> IO[bytes]:
        """Its bytes, fetched now. Raises `UnreadableImage`, or `UnreachableError` if its store is out of reach."""
        return _fetched(self.size or 0, lambda: get(self.url, request_limits().image_bytes))

    def open_parts(self) -> io.BufferedReader:
        """Its bytes for one who reads through it, or leaps over parts of it, which are then not fetched."""
        return io.BufferedReader(BlockReader(self, caution=1).file(), 4096)

    def open_slice(self, offset: int, size: int) -> IO[bytes]:
        """Some consecutive bytes, out of blocks that all threads share."""
        if offset + size > (self.size or 0):
            raise UnreadableImage("the archive ends before the image does")
        return _fetched(size, lambda: shared_reader(self).read(offset, offset + size), "its archive cannot be read: ")

    def sibling(self, name: str) -> RemoteFile:
        """The file that a name in this one means, which is never a local one."""
        return RemoteFile(checked_url(name if is_url(name) else f"{folder_of(self.url)}/{name}"))


File: TypeAlias = LocalFile | RemoteFile


class Slice(NamedTuple):
    """Some consecutive bytes of a file that are an image: a member of an archive."""

    file: File
    offset: int
    size: int

    @property
    def is_remote(self) -> bool:
        return self.file.is_remote

    @property
    def stamp(self) -> str:
        """A member is as old as its archive."""
        return f"{self.file.stamp}, at {self.offset}"

    def open(self) -> IO[bytes]:
        """The image's bytes. Raises `UnreadableImage`, or `UnreachableError` if a store is out of reach."""
        return self.file.open_slice(self.offset, self.size)


def file_at(name: str | os.PathLike[str]) -> File:
    """The file that a path or URL names. Raises `InputError` for a URL that cannot be used."""
    return RemoteFile(checked_url(name)) if is_url(name) else LocalFile(Path(name))


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, as half a sentence of one line."""
    if isinstance(error, Refused):
        return error.reason
    return str(getattr(error, "strerror", None) or first_line(error)).rstrip(".: ")


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def what_it_is(mode: int) -> str:
    """What something is that is not a regular file, as half a sentence."""
    if stat.S_ISDIR(mode):
        return "a folder, not an image file"
    return f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file"


def why_not_reached(path: Path | str, error: OSError | ValueError) -> str:
    """Why the system does not open `path`, as half a sentence."""
    if isinstance(error, UnicodeError):
        return "no file has this name: it is not valid text"
    if isinstance(error, ValueError):
        return "no file has this name: it contains a NUL character"
    if isinstance(error, FileNotFoundError):
        broken = os.path.islink(path)  # noqa: PTH114 (Path.is_link raises where this answers)
        return "a symbolic link to a file that does not exist" if broken else "the file does not exist"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if error.errno == errno.ELOOP:
        return "cannot be read: its symbolic links lead in a circle"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


def user_path(path: str | os.PathLike[str]) -> Path:
    """`path` with `~` replaced by the user's home; an unknown `~name` stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises for an unknown ~name)


def is_folder(path: Path) -> bool:
    """Whether a folder is there; no for whatever the system cannot open, where `Path.is_dir` raises."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Whether a regular file is there; no for whatever the system cannot open, where `Path.is_file` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def _fetched(size: int, read: Callable[[], bytes], what: str = "") -> IO[bytes]:
    """The bytes of an image that `read` gives, counted as held until they are closed; `what` precedes a refusal."""
    limit = request_limits().image_bytes
    if size > limit:
        raise UnreadableImage(f"too large: more than the limit of {limit} bytes for an image at a URL")
    with contextlib.ExitStack() as held:
        held.enter_context(_BYTES.hold(size))
        try:
            return _Fetched(read(), held.pop_all())
        except Refused as refused:
            raise UnreadableImage(what + refused.reason) from refused


class _Fetched(io.BytesIO):
    """Bytes in memory that count as held until they are closed."""

    def __init__(self, data: bytes, held: contextlib.ExitStack) -> None:
        super().__init__(data)
        self._held = held

    def close(self) -> None:
        self._held.close()
        super().close()
