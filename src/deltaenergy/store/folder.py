"""Where the files of a feature store are: the few operations that a store needs of a folder, or of an object store.

    place = place_at("photos.store")
    place.publish("00000.features.npy", data)

A file is there whole or not at all. Names are relative and may hold one "/".
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.file import is_file, is_folder, user_path, why_not_a_file
from deltaenergy.data.items import hash_file
from deltaenergy.data.remote.url import is_url
from deltaenergy.files.atomic import make_folder, remove_litter, replacing, write_bytes
from deltaenergy.files.lock_file import LockFile

if TYPE_CHECKING:
    import numpy.typing as npt


class Place(ABC):
    """The files of one store. `path` is how the user calls it; `maps` whether arrays are memory maps.

    Reading and writing raise `OSError` as files do, and `UnreachableError` if an object store does not answer.
    """

    path: Path | str
    maps = True

    def __str__(self) -> str:
        return str(self.path)

    @property
    def address(self) -> str:
        """What `place_at` takes, in any folder."""
        return os.path.abspath(self.path)  # noqa: PTH100 (links stay links)

    def where(self, name: str) -> str:
        """The whole name of a file, for messages."""
        return f"{self}/{name}"

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a place."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether the file is there."""

    @abstractmethod
    def why_not(self, name: str) -> str | None:
        """Why a file cannot be opened, as half a sentence; None if nothing speaks against it."""

    @abstractmethod
    def size(self, name: str) -> int:
        """A file's size in bytes."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A file's bytes."""

    @abstractmethod
    def checksum(self, name: str) -> str:
        """The hash of a file's bytes (`content.hash_file`)."""

    @abstractmethod
    def array(self, name: str) -> npt.NDArray[Any]:
        """A `.npy` file as an array: memory-mapped, where that can be."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """The names of what lies in the place itself, or in a folder of it."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file, in place of an earlier one, at once."""

    @abstractmethod
    def publish(self, name: str, data: bytes) -> bytes:
        """Write a file that others may write at the same time, and return the bytes that are there now.

        Where a lock keeps others away, these are `data`; elsewhere those of whoever was first.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove a folder of the place, if it is empty."""

    @abstractmethod
    def tidy(self, folder: str = "") -> None:
        """Remove what killed writers left half-written."""

    @abstractmethod
    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of this name for a block. False if somebody else does; always True where there are no locks."""


class LocalPlace(Place):
    """A folder."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path

    def where(self, name: str) -> str:
        """The file's path."""
        return str(self.path / name)

    def exists(self) -> bool:
        """Whether it is a folder."""
        return is_folder(self.path)

    def has(self, name: str) -> bool:
        """Whether a regular file is there."""
        return is_file(self.path / name)

    def why_not(self, name: str) -> str | None:
        """Why it cannot be opened as a regular file."""
        return why_not_a_file(self.path / name)

    def size(self, name: str) -> int:
        """Its size."""
        return (self.path / name).stat().st_size

    def read(self, name: str) -> bytes:
        """Its bytes."""
        return (self.path / name).read_bytes()

    def checksum(self, name: str) -> str:
        """The hash of its bytes, read piece by piece."""
        return hash_file(self.path / name)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A memory map."""
        mapped: npt.NDArray[Any] = np.load(self.path / name, mmap_mode="r", allow_pickle=False)
        return mapped

    def names(self, folder: str = "") -> list[str]:
        """What the folder holds; nothing if it is not there."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(self.path / folder)  # noqa: PTH208 (a Path per name is slow)
        return []

    def replace(self, name: str, data: bytes) -> None:
        """Under a temporary name, synced and renamed."""
        # Not tidied each time: to list a folder of n files for each of them takes n² steps.
        with replacing(self.path / name, tidy=False) as temporary:
            write_bytes(temporary, data)

    def publish(self, name: str, data: bytes) -> bytes:
        """As `replace`: the shard's lock keeps others away."""
        self.replace(name, data)
        return data

    def remove(self, name: str) -> None:
        """Unlink it."""
        (self.path / name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        """Nothing happens if something else lies there."""
        with contextlib.suppress(OSError):
            (self.path / name).rmdir()

    def tidy(self, folder: str = "") -> None:
        """Remove the temporary folders of processes that are gone."""
        remove_litter(self.path / folder)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        """The system's lock on a file of this name."""
        path = Path(os.path.realpath(self.path)) / name
        make_folder(path.parent)
        lock = LockFile(path)
        held = lock.take()
        try:
            yield held
        finally:
            lock.release()


def place_at(path: str | os.PathLike[str]) -> Place:
    """The place that a path or address names."""
    if isinstance(path, str) and is_url(path):
        from deltaenergy.store.remote_folder import RemotePlace

        return RemotePlace(path)
    return LocalPlace(user_path(path))
