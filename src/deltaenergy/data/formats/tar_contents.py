"""What an archive holds, from its headers: its pictures, where they stand, and their labels.

Files with equal names up to the first dot are one sample; its class is the text of its `.cls` file, or the entry
`label`, `class` or `cls` of its `.json` file. One archive's list is held at a time, for a label may stand anywhere in
it: about a hundred bytes an image. Packed, it takes ten to twenty.
"""

from __future__ import annotations

import json
import posixpath
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import IO

from deltaenergy.data.decode import EXTENSIONS, ImageSource, Refusal
from deltaenergy.data.formats.tar_headers import Member, TarHeaders
from deltaenergy.data.items import ImageItem

_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are no labels.
_MAX_LABEL_BYTES = 1 << 20
_OUT_OF_REACH = 1 << 60
_LINK = "a link or sparse file inside the archive"
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


def begins_compressed(start: bytes) -> bool:
    """Whether a file that begins so is compressed."""
    return start.startswith(_COMPRESSED)


class TarContents:
    """The pictures of an archive and their labels, as far as it can be read. What is no plain file has size −1.

    Attributes:
        damage: what is wrong with the rest, if anything.
    """

    def __init__(self) -> None:
        self.damage: str | None = None
        self.names: list[str] = []
        self.offsets, self.sizes = array("q"), array("q")
        self.labels: dict[str, str] = {}

    def read(self, file: IO[bytes]) -> None:
        """Take in all members. An unreadable start is a `tarfile.ReadError`."""
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
        self.damage = headers.damage

    def items(self, shown: str, source: Callable[[int, int], ImageSource]) -> Iterator[ImageItem]:
        """The images in order, each from its offset and size; one more, unreadable, stands for a damaged rest."""
        for name, offset, size in zip(self.names, self.offsets, self.sizes):
            part = source(offset, size) if size >= 0 else Refusal(_LINK)
            yield ImageItem(f"{shown}/{name}", part, self.labels.get(_key(name)))
        if self.damage is not None:
            yield ImageItem(f"{shown} (the rest)", Refusal(f"the archive is damaged: {self.damage}"))

    def packed(self) -> bytes:
        """All of it in few bytes."""
        told = [self.damage, self.names, self.offsets.tolist(), self.sizes.tolist(), self.labels]
        return zlib.compress(json.dumps(told).encode("ascii"), level=1)

    @classmethod
    def unpacked(cls, data: bytes) -> TarContents:
        """What `packed` made small."""
        contents = cls()
        contents.damage, contents.names, offsets, sizes, contents.labels = json.loads(zlib.decompress(data))
        contents.offsets, contents.sizes = array("q", offsets), array("q", sizes)
        return contents

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
