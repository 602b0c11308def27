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
from collections.abc import Iterator

from deltaenergy.core.lru import LruCache
from deltaenergy.data.decode import EXTENSIONS, UnreadableImage
from deltaenergy.data.file import File, RemoteFile, Slice, reason_of
from deltaenergy.data.formats.tar_headers import TarHeaders
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are not labels.
_MAX_LABEL_BYTES = 1 << 20
# Packed lists of archives at URLs, 64 MB of them.
LISTS: LruCache[RemoteFile, bytes] = LruCache(64 << 20, len)


def tar_images(file: File) -> Iterator[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    try:
        file = file.described()
        packed = LISTS.get(file) if isinstance(file, RemoteFile) else None
        if packed is None:
            names, places, labels, damage = _contents(file)
        else:
            names, places, labels, damage = json.loads(zlib.decompress(packed))
        if packed is None and isinstance(file, RemoteFile):
            listed = json.dumps([names, places, labels, damage]).encode("ascii")
            LISTS.put(file, zlib.compress(listed, level=1))
    except (UnreadableImage, OSError) as error:
        raise InputError(f"The archive {file.name!r} cannot be read: {reason_of(error)}.") from error
    for name, place in zip(names, places):
        label = labels.get(_sample(name))
        if place is None:
            problem = "a link or sparse file inside the archive"
            yield ImageItem(f"{file.name}/{name}", None, label, problem=problem)
        else:
            yield ImageItem(f"{file.name}/{name}", Slice(file, *place), label)
    if damage is not None:
        yield ImageItem(f"{file.name} (the rest)", None, problem=f"the archive is damaged: {damage}")


def _contents(file: File) -> tuple[list[str], list[tuple[int, int] | None], dict[str, str], str | None]:
    """The names of the images in an archive, as far as it can be read; the first byte and size of each, None for what
    is no plain file; labels by sample; and the damage, if any. A label may be anywhere, so all of the list is held.

    Raises `InputError` if it is not an archive or has no image, and `OSError` if it cannot be read.
    """
    names, places, labels = list[str](), list[tuple[int, int] | None](), dict[str, str]()
    with file.open_parts() as stream:
        start = stream.read(6)
        headers = TarHeaders(stream)
        try:
            for member in headers:
                suffix = posixpath.splitext(member.name)[1].lower()
                if suffix in EXTENSIONS and not member.folder:
                    names.append(member.name)
                    # Damaged headers claim anything.
                    places.append((member.offset, max(member.size, 0)) if member.plain else None)
                elif member.plain and suffix in {".cls", ".json"} and 0 <= member.size <= _MAX_LABEL_BYTES:
                    stream.seek(member.offset)
                    text = stream.read(member.size).decode("utf-8", errors="replace").strip()
                    if label := text if suffix == ".cls" else _json_label(text):
                        labels[_sample(member.name)] = label
        except tarfile.ReadError as error:
            hint = " Compressed archives must be unpacked first." if start.startswith(_COMPRESSED) else ""
            raise InputError(f"{file.name!r} cannot be read as a tar archive ({error}).{hint}") from error
        finally:
            # A failed request is not the end of a damaged archive, for which tarfile takes it.
            if (failure := getattr(stream.raw, "failure", None)) is not None:
                raise failure
    if not names:
        raise InputError(f"The archive {file.name!r} contains no image.")
    return names, places, labels, headers.damage


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
