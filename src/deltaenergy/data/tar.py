"""Images in tar archives, as WebDataset lays them out: files with equal names up to the first dot are one sample.

    0001.jpg  0001.cls  0002.jpg  0002.json …

The class of a sample is the text of its `.cls` file, or the entry `label`, `class` or `cls` of its `.json` file.
Only headers and those small files are read here. A picture is read from its place in the archive when it is needed,
which is why the archive must not be compressed; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from deltaenergy.data.decode import EXTENSIONS, UnreadableImage
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

TAR_EXTENSIONS = frozenset([".tar"])
_LABEL_KEYS = ("label", "class", "cls")
# Larger annotation files are no labels.
_MAX_LABEL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TarMember:
    """One file inside an uncompressed archive, read when called."""

    archive: Path
    offset: int
    size: int
    stamp: str

    def __call__(self) -> bytes:
        """The file's bytes."""
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) < self.size:
            raise UnreadableImage("the archive ends before the image does")
        return data


@dataclass(frozen=True, slots=True)
class BrokenTail:
    """Stands for whatever came after the place where an archive is damaged."""

    damage: str

    @property
    def stamp(self) -> str:
        """The damage: while it is the same, so is the archive's rest."""
        return self.damage

    def __call__(self) -> NoReturn:
        """There is nothing to read."""
        raise UnreadableImage(f"the archive is damaged: {self.damage}")


def tar_images(path: Path) -> list[ImageItem]:
    """The images of an archive, in its order; one more, unreadable, stands for a damaged rest."""
    try:
        status = path.stat()
        archive = tarfile.open(path, "r:")  # noqa: SIM115 (closed below; the error messages differ)
    except tarfile.ReadError as error:
        hint = " Compressed archives must be unpacked first." if _is_compressed(path) else ""
        raise InputError(f"{str(path)!r} cannot be read as a tar archive ({error}).{hint}") from error
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    stamp = f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    members: list[tarfile.TarInfo] = []
    labels: dict[str, str | None] = {}
    with archive:
        try:
            for member in archive:
                if member.isreg() and not member.issparse():
                    _sort_in(archive, member, members, labels)
            damage = _damage_at(path, archive.offset)
        except (tarfile.TarError, OSError) as error:
            damage = str(error) or "it cannot be read"
    items = [
        ImageItem(
            f"{path.as_posix()}/{member.name}",
            TarMember(path, member.offset_data, member.size, f"{stamp}, at {member.offset_data}"),
            labels.get(_key(member.name)),
        )
        for member in members
    ]
    if not items:
        raise InputError(f"The archive {str(path)!r} holds no image.")
    if damage is not None:
        items.append(ImageItem(f"{path.as_posix()} (the rest)", BrokenTail(damage)))
    return items


def _damage_at(path: Path, offset: int) -> str | None:
    """What is wrong where the last header was looked for: tarfile takes a cut or garbled one for the end."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0"):
        return f"no header at byte {offset}"
    return None


def _sort_in(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    images: list[tarfile.TarInfo],
    labels: dict[str, str | None],
) -> None:
    suffix = PurePosixPath(member.name).suffix.lower()
    if suffix in EXTENSIONS:
        images.append(member)
    elif suffix in {".cls", ".json"} and member.size <= _MAX_LABEL_BYTES:
        file = archive.extractfile(member)
        text = file.read().decode("utf-8", errors="replace").strip() if file is not None else ""
        label = text or None if suffix == ".cls" else _json_label(text)
        if label is not None:
            labels[_key(member.name)] = label


def _json_label(text: str) -> str | None:
    try:
        record = json.loads(text)
    except ValueError:
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
