"""The user's cache folder: results that took long and can be computed again. Safe to delete at any time."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

# The entry of a cached file with the SHA-256 of all its others.
_DIGEST = "sha256"


def cache_folder() -> Path:
    """`$DELTAENERGY_CACHE`, or `deltaenergy` in the platform's folder for caches."""
    chosen = os.environ.get("DELTAENERGY_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # there is no home folder
        where = f" {chosen!r}" if chosen else ""
        raise InputError(f"The cache folder{where} has no home: set DELTAENERGY_CACHE to a folder.") from None
    return Path(base) / "deltaenergy"


def load_cached(path: Path) -> dict[str, torch.Tensor] | None:
    """The tensors in `path` if they are as they were written; else None: compute them again."""
    if not path.is_file():
        return None
    try:
        tensors = read_tensors(path)
    except ArtifactError:
        return None
    digest = tensors.pop(_DIGEST, None)
    whole = digest is not None and bytes(digest.flatten().tolist()) == _digest(tensors)
    return tensors if whole else None


def store_cached(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to `path`; a full or read-only disk costs the next run time, not this one its result."""
    import torch

    try:
        write_tensors(path, {**tensors, _DIGEST: torch.tensor(list(_digest(tensors)), dtype=torch.uint8)})
    except (OSError, InputError) as error:
        warnings.warn(
            f"The cache could not be written ({error}). Set DELTAENERGY_CACHE to a folder with space.", stacklevel=2
        )


def _digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.digest()
