"""Images in tar archives, as WebDataset lays them out: files with equal names up to the first dot are one sample.

    0001.jpg  0001.cls  0002.jpg  0002.json …

A sample's class is the text of its `.cls` file, or the entry `label`, `class` or `cls` of its `.json` file. Only
headers and labels are read here. An image is read from its place in the archive when it is needed, which is why the
archive must not be compressed; nothing is ever unpacked to disk.

Headers are between the images, and each is found only by the one before. So at a URL, to list an archive is to read
through it, except for blocks without a header. What was found there is kept, packed, up to 64 MiB in all: about four
million images. With more archives than that, all are listed again each time.
"""

from __future__ import annotations

import json
import posixpath
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from typing import IO

from deltaenergy.core.lru import LruCache
from deltaenergy.data.decode import EXTENSIONS, UnreadableImage
from deltaenergy.data.file import File, RemoteFile, Slice, reason_of
from deltaenergy.data.formats.tar_headers import Member, TarHeaders
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are not labels.
_MAX_LABEL_BYTES = 1 << 20
_OUT_OF_REACH = 1 << 60
# Packed lists of archives at URLs, 64 MB of them.
LISTS: LruCache[RemoteFile, bytes] = LruCache(64 << 20, len)


def tar_images(file: File) -> Iterator[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    try:
        file = file.described()
        packed = LISTS.get(file) if isinstance(file, RemoteFile) else None
        contents = TarContents(file) if packed is None else TarContents.unpacked(packed)
        if packed is None and isinstance(file, RemoteFile):
            LISTS.put(file, contents.packed())
    except (UnreadableImage, OSError) as error:
        raise InputError(f"The archive {file.name!r} cannot be read: {reason_of(error)}.") from error
    yield from contents.images(file)


def compressed(file: File) -> InputError:
    """The error for an archive with the name of a compressed one."""
    return InputError(
        f"{file.name!r} is a compressed archive, whose images cannot be read from their place. Unpack it to a .tar "
        "first, as with gunzip or unzstd."
    )


class TarContents:
    """The images of an archive and their labels, as far as it can be read. A label may be anywhere in it, so all of the
    list is held: about a hundred bytes per image. What is not a plain file has size −1.

    Raises `InputError` if it is not an archive or has no image, and `OSError` if it cannot be read.
    """

    def __init__(self, file: File) -> None:
        self.names: list[str] = []
        self.offsets, self.sizes = array("q"), array("q")
        self.labels: dict[str, str] = {}
        with file.open_parts() as stream:
            start = stream.read(6)
            headers = TarHeaders(stream)
            try:
                for member in headers:
                    self._add(member, stream)
            except tarfile.ReadError as error:
                hint = " Compressed archives must be unpacked first." if start.startswith(_COMPRESSED) else ""
                raise InputError(f"{file.name!r} cannot be read as a tar archive ({error}).{hint}") from error
            finally:
                # A failed request is not the end of a damaged archive, for which tarfile takes it.
                if (failure := getattr(stream.raw, "failure", None)) is not None:
                    raise failure
        self.damage = headers.damage
        if not self.names:
            raise InputError(f"The archive {file.name!r} contains no image.")

    def images(self, file: File) -> Iterator[ImageItem]:
        for name, offset, size in zip(self.names, self.offsets, self.sizes):
            label = self.labels.get(_sample(name))
            if size >= 0:
                yield ImageItem(f"{file.name}/{name}", Slice(file, offset, size), label)
            else:
                yield ImageItem(f"{file.name}/{name}", None, label, problem="a link or sparse file inside the archive")
        if self.damage is not None:
            yield ImageItem(f"{file.name} (the rest)", None, problem=f"the archive is damaged: {self.damage}")

    def packed(self) -> bytes:
        """All of it in ten to twenty bytes per image."""
        values = [self.damage, self.names, self.offsets.tolist(), self.sizes.tolist(), self.labels]
        return zlib.compress(json.dumps(values).encode("ascii"), level=1)

    @classmethod
    def unpacked(cls, data: bytes) -> TarContents:
        contents = cls.__new__(cls)
        contents.damage, contents.names, offsets, sizes, contents.labels = json.loads(zlib.decompress(data))
        contents.offsets, contents.sizes = array("q", offsets), array("q", sizes)
        return contents

    def _add(self, member: Member, stream: IO[bytes]) -> None:
        suffix = posixpath.splitext(member.name)[1].lower()
        if suffix in EXTENSIONS and not member.folder:
            self.names.append(member.name)
            # Damaged headers claim anything; what is out of reach stays so.
            self.offsets.append(min(member.offset, _OUT_OF_REACH))
            self.sizes.append(min(max(member.size, 0), _OUT_OF_REACH) if member.plain else -1)
        elif member.plain and suffix in {".cls", ".json"} and 0 <= member.size <= _MAX_LABEL_BYTES:
            stream.seek(member.offset)
            text = stream.read(member.size).decode("utf-8", errors="replace").strip()
            label = text or None if suffix == ".cls" else _json_label(text)
            if label is not None:
                self.labels[_sample(member.name)] = label


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


def _sample(name: str) -> str:
    """The sample that a file belongs to: its name up to the first dot of its last part."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]
