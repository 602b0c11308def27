"""The files of a feature store: a few operations on a folder of a disk, or in cloud storage.

    folder = open_folder("photos.store")                # or: "s3://bucket/photos.store"
    folder.put("00000-1.arrow", data)

A file, or an object, is there whole or not at all. Names are relative and may contain one "/". Operations raise
`OSError` as those on files do, `FileNotFoundError` for one that is not there, and `UnreachableError` if cloud storage
is out of reach.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from deltaenergy.data.file import is_file, user_path
from deltaenergy.data.remote.client import RemoteObject, delete, get, get_range, head, list_objects, put
from deltaenergy.data.remote.errors import Missing, Refused
from deltaenergy.data.remote.url import SCHEMES, checked_url, is_url, is_web, scheme_of
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.files.atomic import make_folder, publish, remove_litter, temporary_folder, write_bytes
from deltaenergy.files.lock import NAME, try_lock

if TYPE_CHECKING:
    import pyarrow as pa

StoreFolder: TypeAlias = "LocalFolder | RemoteFolder"
# The manifest is compared and replaced in far less.
_REPLACE_SECONDS = 60
_ATTEMPTS = 5
# No file of a store is larger; a request must have an end.
_MOST_BYTES = 1 << 40
# With less than this left out, one request for all of it is cheaper than two.
_LEAST_LEFT_OUT = 1 << 16


class LocalFolder:
    """A folder on a disk. `path` is how the user calls it, `address` what `open_folder` takes wherever it is called."""

    is_remote = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = os.path.abspath(path)  # noqa: PTH100 (links stay links)

    def __str__(self) -> str:
        return str(self.path)

    def full_name(self, name: str) -> str:
        return str(self.path / name)

    def exists(self, name: str) -> bool:
        return is_file(self.path / name)

    def sizes(self, under: str = "") -> dict[str, int]:
        """The names and sizes of the files in the folder, or in its folder `under`, from one listing.

        Folders in it are listed with a "/" at the end.
        """
        try:
            with os.scandir(self.path / under) as listing:
                entries = list(listing)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        files = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        return files | {f"{entry.name}/": 0 for entry in entries if entry.is_dir()}

    def read(self, name: str) -> bytes:
        path = self.path / name
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait forever
            raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
        return path.read_bytes()

    def map(self, name: str, size: int, without: tuple[int, int] | None = None) -> pa.Buffer:
        """A file of this size without a copy, where that can be; bytes in the range `without` need not be right."""
        import pyarrow as pa

        return pa.memory_map(str(self.path / name)).read_buffer()

    def put(self, name: str, data: bytes | pa.Buffer, *, if_absent: bool = False) -> bool:
        """Write a file. With `if_absent` one that is there stays, and False is returned."""
        path = Path(os.path.realpath(self.path)) / name

        def write() -> bool:
            # Not tidied each time: to list a folder of n files for each of them takes n² steps.
            with temporary_folder(path.parent, tidy=False) as temporary:
                write_bytes(temporary / path.name, data)
                return publish(temporary / path.name, path, if_absent=if_absent)

        return _while_others_remove(write)

    def replace(self, name: str, data: bytes, before: bytes) -> bool:
        """Write a file if it has the bytes `before`; else False."""
        with self.lock(NAME, _REPLACE_SECONDS):
            return self.read(name) == before and self.put(name, data)

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def tidy(self, under: str = "") -> None:
        """Remove what killed writers left: half-written files, an empty folder, a lock."""
        remove_litter(self.path / under)
        with contextlib.suppress(OSError):
            if under:
                (self.path / under).rmdir()
            elif self.exists(NAME):
                with self.lock(NAME):  # its last holder removes it
                    pass

    @contextlib.contextmanager
    def lock(self, name: str, wait: float = 0) -> Iterator[bool]:
        """Hold the lock of this name for a block: False if another run holds it. It saves double work, no more."""
        path = Path(os.path.realpath(self.path)) / name
        with contextlib.ExitStack() as stack:

            def acquire() -> bool:
                make_folder(path.parent)
                return stack.enter_context(try_lock(path, wait=wait))

            yield _while_others_remove(acquire)
        if "/" in name:
            with contextlib.suppress(OSError):  # mostly there is more in it
                path.parent.rmdir()


class RemoteFolder:
    """A folder in cloud storage, with the operations of `LocalFolder`.

    There are no locks; two processes that write the same name are separated by conditions (If-None-Match, If-Match).
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        self.path = self.address = checked_url(url, "The path given").rstrip("/")
        if is_web(self.path):
            raise InputError(f"{self.path} is on a web server; stores and tables can be at s3://, gs:// or az://.")

    def __str__(self) -> str:
        return self.path

    def full_name(self, name: str) -> str:
        return f"{self.path}/{name}"

    def exists(self, name: str) -> bool:
        """A refusal to answer is an error: the file may well be there."""
        try:
            head(self.full_name(name))
        except Missing:
            return False
        except Refused as refused:
            credentials = SCHEMES[scheme_of(refused.url)].credentials
            raise UnreachableError(
                f"{refused}. Check your rights to read it. Credentials are read from the environment: {credentials}."
            ) from refused
        return True

    def sizes(self, under: str = "") -> dict[str, int]:
        """One request per thousand objects, those in folders included."""
        folder = f"{self.path}/{under}".rstrip("/")
        found: dict[str, int] = {}
        with contextlib.suppress(Missing):
            for item in list_objects(folder):
                name, slash, _ = item.url.removeprefix(f"{folder}/").partition("/")
                found[name + slash] = 0 if slash else item.size or 0
        return found

    def read(self, name: str) -> bytes:
        try:
            return get(self.full_name(name), _MOST_BYTES)
        except Missing as missing:
            raise FileNotFoundError(errno.ENOENT, "nothing is at this URL", missing.url) from None

    def map(self, name: str, size: int, without: tuple[int, int] | None = None) -> pa.Buffer:
        """The bytes themselves; those in the range `without` are not fetched, and zero."""
        import pyarrow as pa

        start, stop = without or (0, 0)
        if stop - start >= _LEAST_LEFT_OUT:
            whole = RemoteObject(self.full_name(name), size)
            data = np.zeros(size, np.uint8)  # memory that is not written is not used
            for first, last in ((0, start), (stop, size)):
                data[first:last] = np.frombuffer(get_range(whole, first, last), np.uint8)
            return pa.py_buffer(data)
        return pa.py_buffer(self.read(name))

    def put(self, name: str, data: bytes | pa.Buffer, *, if_absent: bool = False) -> bool:
        content = data if isinstance(data, bytes) else data.to_pybytes()
        return put(self.full_name(name), content, if_absent=if_absent) is not None

    def replace(self, name: str, data: bytes, before: bytes) -> bool:
        """Conditional on the version that has the bytes `before`."""
        version = head(self.full_name(name)).version
        return self.read(name) == before and put(self.full_name(name), data, if_match=version) is not None

    def delete(self, name: str) -> None:
        delete(self.full_name(name))

    def tidy(self, under: str = "") -> None:
        """Nothing is ever half-written."""

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


def _while_others_remove(work: Callable[[], bool]) -> bool:
    """Do it again if a folder is gone: another run may remove that of its plan as soon as this one has made it."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return work()
    return work()


def open_folder(path: str | os.PathLike[str]) -> StoreFolder:
    """The folder that a path or URL names; it need not exist."""
    if is_url(path):
        return RemoteFolder(path)
    return LocalFolder(user_path(path))
