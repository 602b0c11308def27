"""The user's cache folder: results that took long and can be computed again. Safe to delete at any time."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch


def cache_folder() -> Path:
    """`$DELTAENERGY_CACHE`, or `deltaenergy` in the platform's folder for caches."""
    chosen = os.environ.get("DELTAENERGY_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "deltaenergy"


def load_cached(path: Path) -> dict[str, torch.Tensor] | None:
    """The tensors in `path`, or None if there are none or the file is damaged: then they are computed again."""
    if not path.is_file():
        return None
    try:
        return read_tensors(path)
    except ArtifactError:
        return None


def store_cached(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to `path`; a full or read-only disk costs the next run time, not this one its result."""
    from safetensors import SafetensorError

    try:
        write_tensors(path, tensors)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"The cache could not be written ({error}). Set DELTAENERGY_CACHE to a folder with space.", stacklevel=2
        )
