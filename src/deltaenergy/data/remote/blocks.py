"""Large objects read through parts of some megabytes that all threads of the process share.

Pictures in an archive are small and lie side by side, and threads ask for them nearly in order. So what is fetched are
parts of 4 MiB, each once: whoever asks while one is on its way waits for it, and the last ones are kept, up to 64 MiB.
While an object is read in a row, the parts behind are asked for ahead, several at a time, since most of a request is
waiting. How many depends on how much was read in a row: what is fetched in vain, where reading ends in the middle, is
at most an eighth.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from deltaenergy.data.remote.client import RemoteObject, get_range
from deltaenergy.data.remote.errors import Changed, Refused
from deltaenergy.data.seeking import Seeking

# Asked for at a time ahead of the one that is being read.
MOST_AHEAD = 8
# One who reads some pictures asks for a part ahead for every so many in a row; one who reads up to the end, for each.
_CAUTION = 8
_READERS = 64
# What an entry of a few bytes takes.
_LEAST_COST = 1024

_Key = tuple[RemoteObject, int, int]


class Parts:
    """The parts that are there or on their way, the last ones used last.

    Args:
        fetch: what asks for the bytes of an object from a start up to an end.
        part_bytes: the size of a part.
        kept_bytes: how much is kept of those that are there.
    """

    def __init__(
        self,
        fetch: Callable[[RemoteObject, int, int], bytes] = get_range,
        *,
        part_bytes: int = 4 << 20,
        kept_bytes: int = 64 << 20,
    ) -> None:
        self.fetch, self.part_bytes, self.kept_bytes = fetch, part_bytes, kept_bytes
        self.lock = threading.Lock()
        self.found: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self.cost = 0

    def get(self, of: RemoteObject, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`."""
        key = (of, start, end)
        future, new = self._future(key)
        if new:
            self._fetch(key, future)
        return future.result()

    def ahead(self, of: RemoteObject, start: int, end: int) -> None:
        """See that they are on their way."""
        key = (of, start, end)
        future, new = self._future(key)
        if new:
            # As a daemon: what nobody may want in the end does not keep the process alive.
            threading.Thread(target=self._fetch, args=(key, future), name="read ahead", daemon=True).start()

    def _future(self, key: _Key) -> tuple[Future[bytes], bool]:
        with self.lock:
            future = self.found.get(key)
            if future is not None:
                self.found.move_to_end(key)
                return future, False
            self.found[key] = future = Future()
            return future, True

    def _fetch(self, key: _Key, future: Future[bytes]) -> None:
        try:
            data = self.fetch(*key)
        except BaseException as error:
            # Those who wait are told; the next one may try again, unless that cannot help.
            with self.lock:
                if isinstance(error, Changed):
                    self._keep(_LEAST_COST)
                else:
                    self.found.pop(key, None)
            future.set_exception(error)
        else:
            future.set_result(data)
            with self.lock:
                self._keep(max(len(data), _LEAST_COST))

    def _keep(self, cost: int) -> None:
        self.cost += cost
        given_up = []
        for key, future in self.found.items():
            if self.cost <= self.kept_bytes:
                break
            if future.done():
                given_up.append(key)
                self.cost -= _LEAST_COST if future.exception() else max(len(future.result()), _LEAST_COST)
        for key in given_up:
            del self.found[key]


class PartReader:
    """Any bytes of an object, by its parts; `caution` says how many in a row are worth one ahead."""

    def __init__(self, of: RemoteObject, caution: int = _CAUTION) -> None:
        if of.size is None:
            raise Refused(of.url, "its server does not tell its size")
        self.of, self.size, self._caution = of, of.size, caution
        self._lock = threading.Lock()
        self._last, self._run = -1, 0

    @property
    def is_small(self) -> bool:
        """Whether one part holds all of it."""
        return self.size <= _parts.part_bytes

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, or to the end of the object. Raises as `get_range` does."""
        end = min(end, self.size)
        if end <= start:
            return b""
        parts, size = _parts, _parts.part_bytes
        first, last = start // size, (end - 1) // size
        beyond = last + self._ahead(first, last)
        pieces = []
        for number in range(first, last + 1):
            for coming in range(number + 1, min(beyond, number + MOST_AHEAD) + 1):
                if coming * size < self.size:
                    parts.ahead(self.of, *self._bounds(coming, size))
            data = parts.get(self.of, *self._bounds(number, size))
            offset = number * size
            pieces.append(data[max(start - offset, 0) : end - offset])
        return b"".join(pieces) if len(pieces) > 1 else pieces[0]

    def _bounds(self, number: int, size: int) -> tuple[int, int]:
        return number * size, min((number + 1) * size, self.size)

    def _ahead(self, first: int, last: int) -> int:
        """How many parts behind `last` to ask for; none where no new ground is entered, or after a leap."""
        with self._lock:
            if not self._last - MOST_AHEAD <= first <= self._last + 1:
                self._last, self._run = last, 0
            elif last > self._last:
                self._run += last - self._last
                self._last = last
                return min(MOST_AHEAD, self._run // self._caution)
            return 0


class PartFile(Seeking):
    """An object as a file that can be read anywhere. `failure` is what the last request that failed raised: libraries
    between take it for a fault of the bytes.
    """

    def __init__(self, reader: PartReader) -> None:
        super().__init__(reader.size)
        self.reader = reader
        self.failure: Exception | None = None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes, as many as there is room for."""
        try:
            data = self.part(self.position, min(self.position + len(buffer), self.size))
        except Exception as error:
            self.failure = error
            raise
        memoryview(buffer)[: len(data)] = data
        self.position += len(data)
        return len(data)

    def part(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`."""
        return self.reader.read(start, end)


def to_the_end(of: RemoteObject) -> PartFile:
    """The object for one who reads all of it, or leaps from header to header: parts without one are not fetched."""
    return PartFile(PartReader(of, caution=1))


def reader_of(of: RemoteObject) -> PartReader:
    """The reader that all who read pictures from this object share; the last ones are kept."""
    with _readers_lock:
        reader = _readers[of] = _readers.get(of) or PartReader(of)
        _readers.move_to_end(of)
        while len(_readers) > _READERS:
            _readers.popitem(last=False)
        return reader


def shared_part(of: RemoteObject, start: int, end: int) -> bytes:
    """Bytes that need not begin where a part does; equal ones are fetched once."""
    return _parts.get(of, start, end)


def shared_ahead(of: RemoteObject, start: int, end: int) -> None:
    """See that they are on their way."""
    _parts.ahead(of, start, end)


def forget_parts(anew: Parts | None = None) -> None:
    """Begin anew, as after a fork: requests that were on their way belong to the other process."""
    global _parts, _readers_lock
    _parts, _readers_lock = anew or Parts(), threading.Lock()
    _readers.clear()


_parts = Parts()
_readers: OrderedDict[RemoteObject, PartReader] = OrderedDict()
_readers_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_parts)
