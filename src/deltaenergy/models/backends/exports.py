"""Exported towers in the user's cache: a folder each, whole or not there, and checked byte by byte when it is used.

    backends/<hash of fingerprint, backend and precision>/
        export.json         what it is; the size and SHA-256 of each other file
        …                   what the backend wrote

A folder is made under a temporary name and renamed. One that is damaged is made again.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deltaenergy import __version__
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_file, hash_strings, read_json, write_json
from deltaenergy.files.artifact import check_seal, sealed
from deltaenergy.files.atomic import sync_file, sync_folder, temporary_folder
from deltaenergy.files.cache import cache_folder
from deltaenergy.files.schema import Where, mapping_of, record, text, whole

RECORD = "export.json"
FORMAT = "deltaenergy export 1"
_RECORD = record(
    {
        "format": text(),
        "deltaenergy": text(),
        "tower": text(),
        "files": mapping_of(record({"bytes": whole(0), "sha256": text(matching="[0-9a-f]{64}")})),
        "checksum": text(),
    }
)
Opened = TypeVar("Opened")


def opened_export(
    tower: str, make: Callable[[Path], None] | None, open_folder: Callable[[Path], Opened]
) -> Opened | None:
    """What `open_folder` makes of the export of a tower: of the cached one if it is sound, else of one made now.

    Args:
        tower: what is exported, and how: the fingerprint and a tag.
        make: writes the export's files into an empty folder; None if it cannot be made, which gives None.
        open_folder: loads them. If the cached ones cannot be loaded, they are made again.
    """
    target = cache_folder() / "backends" / hash_strings([FORMAT, tower])
    if is_sound(target, tower):
        with contextlib.suppress(Exception):  # of whatever kind the backend's library has, as for another version's
            return open_folder(target)
    if make is None:
        return None
    try:
        with temporary_folder(target.parent) as temporary:
            new = temporary / "new"
            _write(new, tower, make)
            if target.exists():
                target.rename(temporary / "old")
            with contextlib.suppress(FileExistsError):  # another run was faster; its export is as good
                new.rename(target)
            sync_folder(target.parent)
        return open_folder(target)
    except OSError as error:
        warnings.warn(
            f"The exported tower could not be kept ({error}): it is made anew each time. Set DELTAENERGY_CACHE to a "
            "folder with space.",
            stacklevel=2,
        )
    with tempfile.TemporaryDirectory(prefix="deltaenergy-") as folder:
        _write(Path(folder) / "new", tower, make)
        return open_folder(Path(folder) / "new")


def is_sound(folder: Path, tower: str) -> bool:
    """Whether a folder holds the export of this tower, every byte as it was written."""
    file = folder / RECORD
    try:
        found: Any = read_json(file)
        _RECORD(found, Where(str(file)))
        check_seal(found, file)
        if found["format"] != FORMAT or found["tower"] != tower:
            return False
        return all(
            (folder / name).stat().st_size == entry["bytes"] and hash_file(folder / name) == entry["sha256"]
            for name, entry in found["files"].items()
        )
    except (ArtifactError, OSError):
        return False


def _write(folder: Path, tower: str, make: Callable[[Path], None]) -> None:
    folder.mkdir()
    make(folder)
    files = sorted(folder.iterdir())
    for file in files:
        sync_file(file)
    entries = {file.name: {"bytes": file.stat().st_size, "sha256": hash_file(file)} for file in files}
    write_json(
        folder / RECORD, sealed({"format": FORMAT, "deltaenergy": __version__, "tower": tower, "files": entries})
    )
