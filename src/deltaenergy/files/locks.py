"""One run at a time in a folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from deltaenergy.errors import InputError
from deltaenergy.files.writing import make_folder

NAME = ".deltaenergy.lock"
_MARK = "deltaenergy lock: "


@dataclass
class _Held:
    """A lock that this thread holds; `handle` is None where the system has no locks."""

    handle: int | None
    made_folder: bool
    times: int = 0


# The locks of this thread by process and file: a forked child inherits the list, but not its parent's locks.
_of_thread = threading.local()


class FolderLock:
    """Hold `folder` for this run: `with FolderLock(folder): …`. The folder is made if it does not exist.

    Another process that wants the folder meanwhile gets an `InputError` that names this one; the thread that holds it
    may take it again. The lock is the system's (flock) on a small file in the folder. It ends when the process ends,
    so what a killed process leaves behind blocks nobody. The file is removed afterwards. Where the system has no such
    locks there is none, with a warning on Unix.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._path = Path(os.path.realpath(folder)) / NAME

    def __enter__(self) -> FolderLock:
        locks = _locks()
        key = (os.getpid(), str(self._path))
        if key not in locks:
            locks[key] = self._acquire()
        locks[key].times += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        locks = _locks()
        key = (os.getpid(), str(self._path))
        locks[key].times -= 1
        if not locks[key].times:
            self._release(locks.pop(key))

    def _acquire(self) -> _Held:
        made_folder = not self._path.parent.exists()
        make_folder(self._path.parent)
        handle = self._locked_file()
        if handle is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            with contextlib.suppress(OSError):  # only what another run is told depends on it
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{_MARK}process {os.getpid()} on {platform.node()}, since {since}\n".encode(), 0)
        return _Held(handle, made_folder)

    def _locked_file(self) -> int | None:
        """The open lock file, or None where the system has no locks."""
        try:
            import fcntl
        except ImportError:  # not on Unix
            return None
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
            try:
                self._check_ours(handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(handle):
                    return handle
                os.close(handle)  # the run before us removed the file between our opening and locking it
            except BlockingIOError:
                owner = _owner(handle)
                os.close(handle)
                raise InputError(
                    f"Another run{owner} is writing to {self.folder}. Wait for it, or choose another folder."
                ) from None
            except OSError as error:
                os.close(handle)
                with contextlib.suppress(OSError):
                    self._path.unlink()
                warnings.warn(
                    f"{self.folder} cannot be locked ({error.strerror}): see to it that no other run writes there.",
                    stacklevel=4,
                )
                return None
            except BaseException:
                os.close(handle)
                raise

    def _release(self, held: _Held) -> None:
        # Removed while it is still held, so that nobody can hold a file that is no longer there.
        if held.handle is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(held.handle)
        if held.made_folder:
            with contextlib.suppress(OSError):  # it holds something, as it should
                self._path.parent.rmdir()

    def _check_ours(self, handle: int) -> None:
        """A file of this name that is not ours is the user's: neither changed nor removed."""
        ordinary = stat.S_ISREG(os.fstat(handle).st_mode)
        # A lock whose writer was killed at once may be empty or cut short.
        if not ordinary or not _MARK.encode().startswith(os.pread(handle, len(_MARK), 0)):
            raise InputError(f"{self._path} is not a lock of deltaenergy. Move it away, or choose another folder.")

    def _is_current(self, handle: int) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(handle)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _locks() -> dict[tuple[int, str], _Held]:
    locks: dict[tuple[int, str], _Held] = _of_thread.__dict__.setdefault("locks", {})
    return locks


def _owner(handle: int) -> str:
    """What the holder wrote about itself, in brackets; empty if it has not come to that yet."""
    text = os.pread(handle, 500, 0).decode("utf-8", "replace").strip()
    return f" ({text.removeprefix(_MARK)})" if text.startswith(_MARK) else ""
