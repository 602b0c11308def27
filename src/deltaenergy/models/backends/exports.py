"""Exported towers in the user's cache: `backends/<hash of fingerprint, backend and precision>/`, whole or not there.

A folder is made under a temporary name and renamed. One that the backend cannot open is made again.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deltaenergy.files import hash_strings
from deltaenergy.files.atomic import sync_file, sync_folder, temporary_folder
from deltaenergy.files.cache import cache_folder

FORMAT = "deltaenergy export 1"
Opened = TypeVar("Opened")


def opened_export(
    tower: str, make: Callable[[Path], None] | None, open_folder: Callable[[Path], Opened]
) -> Opened | None:
    """What `open_folder` makes of the export of a tower: of the cached one if it can be opened, else of one made now.

    Args:
        tower: what is exported, and how: the fingerprint and a tag.
        make: writes the export's files into an empty folder; None if it cannot be made, which gives None.
        open_folder: loads them.
    """
    target = cache_folder() / "backends" / hash_strings([FORMAT, tower])
    if target.is_dir():
        with contextlib.suppress(Exception):  # of whatever kind the backend's library has, as for another version's
            return open_folder(target)
    if make is None:
        return None
    try:
        with temporary_folder(target.parent) as temporary:
            new = temporary / "new"
            new.mkdir()
            make(new)
            for file in new.iterdir():
                sync_file(file)
            if target.exists():
                target.rename(temporary / "old")
            with contextlib.suppress(FileExistsError):  # another run was faster; its export is as good
                new.rename(target)
            sync_folder(target.parent)
        return open_folder(target)
    except OSError as error:
        warnings.warn(
            f"The exported encoder could not be cached ({error}), so it is made again each time. Set DELTAENERGY_CACHE "
            "to a folder with space.",
            stacklevel=2,
        )
    with tempfile.TemporaryDirectory(prefix="deltaenergy-") as folder:
        make(Path(folder))
        return open_folder(Path(folder))
