"""Images in tar archives at addresses, read where they lie: nothing is unpacked, and nothing is written to disk.

Headers stand between the pictures, and each is found only by the one before. So to list an archive is to read through
it, in large parts of which several are on their way at a time; only where files are larger than a part, the parts
between are passed over. What was found is kept, packed, up to 64 MiB in all: about four million pictures. Whoever
goes over more archives than that lists some of them again each time.
"""

from __future__ import annotations

import io
import random
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, ClassVar

from deltaenergy.data.decode import Streamed, UnreadableImage
from deltaenergy.data.file import fetched_image
from deltaenergy.data.formats.tar import not_an_archive
from deltaenergy.data.formats.tar_contents import TarContents
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.blocks import reader_of, to_the_end
from deltaenergy.data.remote.client import RemoteObject
from deltaenergy.data.remote.errors import Refused
from deltaenergy.errors import InputError


@dataclass(frozen=True, slots=True)
class RemoteMember(Streamed):
    """One file inside an uncompressed archive at an address; `length` and `version` are the archive's."""

    url: str
    length: int
    version: str
    offset: int
    size: int

    far: ClassVar[bool] = True

    @property
    def stamp(self) -> str:
        """A member is as old as its archive."""
        return f"{self.length} bytes, tag {self.version}, at {self.offset}"

    def open(self) -> IO[bytes]:
        """The file's bytes, out of the parts of its archive. Raises `UnreachableError` if its store is out of reach."""
        if self.offset + self.size > self.length:
            raise UnreadableImage("the archive ends before the image does")
        reader = reader_of(RemoteObject(self.url, self.length, self.version))
        start, end = self.offset, self.offset + self.size
        return fetched_image(self.size, lambda: reader.read(start, end), "its archive cannot be read: ")


def remote_tar_images(of: RemoteObject) -> Iterator[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    contents = _kept.get(of)
    if contents is None:
        contents = _read(of)
        _kept.put(of, contents)
    yield from contents.items(
        of.url, lambda offset, size: RemoteMember(of.url, of.size or 0, of.version or "", offset, size)
    )


def _read(of: RemoteObject) -> TarContents:
    contents, raw = TarContents(), to_the_end(of)
    # Headers are far apart: a small buffer copies less in vain.
    file = io.BufferedReader(raw, 4096)
    start = b""
    try:
        start = file.read(6)
        contents.read(file)
        if raw.failure is not None:  # taken for the end of a damaged archive
            raise raw.failure
    except tarfile.ReadError as error:
        raise not_an_archive(of.url, error, start) from error
    except Refused as refused:
        raise InputError(f"The archive {of.url} cannot be read: {refused.reason}.") from refused
    if not contents.names:
        raise InputError(f"The archive {of.url} holds no image.")
    return contents


class TarLists:
    """Lists of archives, packed. What makes room is drawn at random: who goes over more than fits, again and again from
    the first, would never find one if the oldest had to go.
    """

    def __init__(self, kept_bytes: int = 64 << 20) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._lists: dict[RemoteObject, bytes] = {}

    def get(self, of: RemoteObject) -> TarContents | None:
        """What an archive holds, if that is known."""
        with self._lock:
            packed = self._lists.get(of)
        return None if packed is None else TarContents.unpacked(packed)

    def put(self, of: RemoteObject, contents: TarContents) -> None:
        """Keep it."""
        packed = contents.packed()
        with self._lock:
            total = sum(map(len, self._lists.values())) + len(packed)
            while total > self._kept_bytes and self._lists:
                total -= len(self._lists.pop(random.choice(list(self._lists))))
            if total <= self._kept_bytes:
                self._lists[of] = packed


def forget_lists(anew: TarLists | None = None) -> None:
    """List every archive anew."""
    global _kept
    _kept = anew or TarLists()


_kept = TarLists()
