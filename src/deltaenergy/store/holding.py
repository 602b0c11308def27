"""Who may do what in a store at a time: one run plans it alone, several fill it together.

The store's lock is held alone while a run looks at the store and plans, and shared while it fills the planned shards,
each of which has a lock of its own. Object stores have no locks: there, a shard counts as whoever was first wrote it.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from pathlib import Path
from types import TracebackType

from deltaenergy.errors import InputError
from deltaenergy.files.atomic import make_folder
from deltaenergy.files.lock_file import LockFile
from deltaenergy.files.locks import NAME, busy
from deltaenergy.store.filling import said_if_impossible
from deltaenergy.store.folder import LocalPlace, Place

# Another run that plans holds the store alone; it is waited for so long.
PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.1


class Hold:
    """A store held for this run: `with Hold(place) as hold: …`. Its folder is made if it does not exist.

    `alone` is False if another run is filling the store; then this one may only help.
    """

    def __init__(self, place: Place, patience: float = PATIENCE_SECONDS) -> None:
        self.place, self._patience = place, patience
        self.alone = True
        self._lock: LockFile | None = None
        self._made_folder = False

    def __enter__(self) -> Hold:
        if not isinstance(self.place, LocalPlace):
            return self
        try:
            with said_if_impossible(self.place):
                folder = Path(os.path.realpath(self.place.path))
                self._made_folder = not folder.exists()
                make_folder(folder)
                self._lock = LockFile(folder / NAME)
                self._take(self._lock)
        except ValueError as error:  # a NUL in its name, or what is no valid text
            if isinstance(error, InputError):
                raise
            raise InputError(f"No folder can be called {str(self.place)!r}: {error}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        if self._made_folder:
            with contextlib.suppress(OSError):  # it holds something, as it should
                Path(os.path.realpath(self.place.path)).rmdir()

    def join(self) -> Hold:
        """Hold the store as one of several from the start, until this process ends: what a worker does."""
        self.__enter__()
        self.share()
        return self

    def share(self) -> None:
        """Let other runs help. One with other images may come in between, and plan anew: look at the plan again."""
        if self._lock is not None and self.alone:
            self._lock.share()
        self.alone = False

    def busy(self) -> InputError:
        """The error for a run that cannot help the one that is filling the store."""
        return busy(self.place.path, self._lock) if self._lock else InputError(f"Another run fills {self.place}.")

    def _take(self, lock: LockFile) -> None:
        until, told = time.monotonic() + self._patience, False
        while True:
            if lock.take():
                return
            if lock.take(shared=True):
                self.alone = False
                return
            if time.monotonic() > until:
                raise self.busy()
            if not told:
                warnings.warn(f"Another run{lock.owner} is looking at {self.place}: waiting for it.", stacklevel=5)
                told = True
            time.sleep(_POLL_SECONDS)
