"""One at a time: a lock file that ends with its process, however that ends (filelock, so on Windows as well).

Locks keep two runs apart and save double work. What is written stays whole without them (`atomic.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from deltaenergy.errors import InputError
from deltaenergy.files.atomic import make_folder

NAME = ".deltaenergy.lock"
# What file systems without locks answer.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


@contextlib.contextmanager
def try_lock(path: Path, *, reentrant: bool = False, wait: float = 0) -> Iterator[bool]:
    """Hold the lock file at `path` for the block; False if another process or thread still holds it after `wait` s.

    A `reentrant` lock may be taken again by the thread that holds it. The last to hold the file removes it.
    """
    lock = FileLock(path, is_singleton=reentrant)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        warnings.warn(
            f"{path.parent} cannot be locked ({error}): make sure that no other run writes there.", stacklevel=4
        )
        yield True
        return
    try:
        yield True
    finally:
        if lock.lock_counter == 1:  # while it is held: a process that waits for it makes a new file
            with contextlib.suppress(OSError):
                path.unlink()
        lock.release()


@contextlib.contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Hold `folder` for a block; it is made if it does not exist.

    Another process or thread that wants the folder meanwhile gets an `InputError`; the thread that holds it may take
    it again.
    """
    path = Path(os.path.realpath(folder))
    with contextlib.ExitStack() as held:
        if not path.exists():
            make_folder(path)
            held.callback(remove_empty, path)
        if not held.enter_context(try_lock(path / NAME, reentrant=True)):
            raise InputError(f"Another run is writing to {folder}. Wait for it, or choose another folder.")
        yield


def remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it has files, as it should
        folder.rmdir()
