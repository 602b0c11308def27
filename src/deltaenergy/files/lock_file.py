"""The system's lock (flock) on a small file of ours: one process holds it alone, or several share it.

The lock ends with its process, however that ends, so what a killed process leaves behind blocks nobody. Where the
system has no such locks there is none, with a warning on Unix.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import time
import warnings
from pathlib import Path

from deltaenergy.errors import InputError

_MARK = "deltaenergy lock: "


class LockFile:
    """The lock on the file at `path`, whose folder must exist. The file goes when its last holder does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._shared = False
        self._owner = ""

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock, alone or shared; False at once if others are in the way (`owner` then tells who)."""
        try:
            import fcntl
        except ImportError:  # not on Unix
            return True
        while True:
            # Without O_NONBLOCK, to open a pipe would wait for ever.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
            try:
                self._check_ours(handle)
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                if self._is_current(handle):
                    self._handle, self._shared = handle, shared
                    if not shared:
                        self._sign()
                    return True
                os.close(handle)  # the run before us removed the file between our opening and locking it
            except BlockingIOError:
                self._owner = _owner(handle)
                os.close(handle)
                return False
            except OSError as error:
                os.close(handle)
                with contextlib.suppress(OSError):
                    self.path.unlink()
                warnings.warn(
                    f"{self.path.parent} cannot be locked ({error.strerror}): "
                    "see to it that no other run writes there.",
                    stacklevel=5,
                )
                return True
            except BaseException:
                os.close(handle)
                raise

    @property
    def owner(self) -> str:
        """What the last that held the lock alone wrote about itself, in brackets; empty if it wrote nothing."""
        return self._owner

    def share(self) -> None:
        """From alone to shared. Another may hold it alone in between: what was read before must be read again."""
        if self._handle is not None:
            import fcntl

            fcntl.flock(self._handle, fcntl.LOCK_SH)
            self._shared = True

    def release(self) -> None:
        """Let go. The last holder removes the file while it still holds it, so that nobody holds what is not there."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with contextlib.suppress(OSError):
            if self._shared:
                import fcntl

                # An OSError while others share it. Ours is lost by that, so that the last to try finds nobody.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(handle):
                self.path.unlink()
        os.close(handle)

    def _sign(self) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):  # only what another run is told depends on it
            assert self._handle is not None
            os.ftruncate(self._handle, 0)
            text = f"{_MARK}process {os.getpid()} on {platform.node()}, since {since}\n"
            os.pwrite(self._handle, text.encode(), 0)

    def _check_ours(self, handle: int) -> None:
        """A file of this name that is not ours is the user's: neither changed nor removed."""
        ordinary = stat.S_ISREG(os.fstat(handle).st_mode)
        # A lock whose writer was killed at once may be empty or cut short.
        if not ordinary or not _MARK.encode().startswith(os.pread(handle, len(_MARK), 0)):
            raise InputError(f"{self.path} is not a lock of deltaenergy. Move it away, or choose another folder.")

    def _is_current(self, handle: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(handle)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _owner(handle: int) -> str:
    text = os.pread(handle, 500, 0).decode("utf-8", "replace").strip()
    return f" ({text.removeprefix(_MARK)})" if text.startswith(_MARK) else ""
