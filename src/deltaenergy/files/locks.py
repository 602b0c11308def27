"""One run at a time in a folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from deltaenergy.errors import InputError
from deltaenergy.files.atomic import make_folder
from deltaenergy.files.lock_file import LockFile

NAME = ".deltaenergy.lock"


@dataclass
class _Held:
    """A lock that this thread holds."""

    lock: LockFile
    made_folder: bool
    times: int = 0


# The locks of this thread by process and file: a forked child inherits the list, but not its parent's locks.
_of_thread = threading.local()


class FolderLock:
    """Hold `folder` for this run: `with FolderLock(folder): …`. The folder is made if it does not exist.

    Another process that wants the folder meanwhile gets an `InputError` that names this one; the thread that holds it
    may take it again. See `LockFile` for the lock itself, a small file in the folder that is removed afterwards.
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
            held = locks.pop(key)
            held.lock.release()
            if held.made_folder:
                with contextlib.suppress(OSError):  # it holds something, as it should
                    self._path.parent.rmdir()

    def _acquire(self) -> _Held:
        made_folder = not self._path.parent.exists()
        make_folder(self._path.parent)
        lock = LockFile(self._path)
        if not lock.take():
            raise busy(self.folder, lock)
        return _Held(lock, made_folder)


def busy(folder: str | Path, lock: LockFile) -> InputError:
    """The error for a folder that another run holds."""
    return InputError(f"Another run{lock.owner} is writing to {folder}. Wait for it, or choose another folder.")


def _locks() -> dict[tuple[int, str], _Held]:
    locks: dict[tuple[int, str], _Held] = _of_thread.__dict__.setdefault("locks", {})
    return locks
