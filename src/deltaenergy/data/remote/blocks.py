"""Large objects read through blocks of some megabytes that all threads of the process share.

Images in an archive are small and next to each other, and threads ask for them nearly in order. So what is fetched are
blocks of 4 MiB, each once: a thread that needs one on its way waits for it, and the last ones are kept, up to 64 MiB.
While an object is read in a row, further blocks are requested ahead, several at a time, since most of a request is
waiting. How many depends on how much was read in a row: what is fetched in vain, where reading ends in the middle, is
at most an eighth.
"""

from __future__ import annotations

import bisect
import io
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from deltaenergy.core.lru import LruCache
from deltaenergy.data.remote.client import RemoteObject, get_range
from deltaenergy.data.remote.errors import Changed, Refused

# Requested at a time ahead of the block that is being read.
MOST_AHEAD = 8
# One who reads some images requests a block ahead for this many in a row; one who reads up to the end, for each.
_CAUTION = 8
# Ranges of columns are requested so many at a time.
_RANGES_AHEAD = 16
_READERS = 64
# What an entry of a few bytes takes.
_LEAST_COST = 1024


class _Block(Future[bytes]):
    """Some bytes of an object that are there, or on their way."""

    def __init__(self, of: RemoteObject, start: int, end: int) -> None:
        super().__init__()
        self.key, self.cost = (of, start, end), max(end - start, _LEAST_COST)


class BlockCache:
    """The blocks of `block_bytes` that were used last, up to `kept_bytes`."""

    def __init__(
        self,
        fetch: Callable[[RemoteObject, int, int], bytes] = get_range,
        *,
        block_bytes: int = 4 << 20,
        kept_bytes: int = 64 << 20,
    ) -> None:
        self.fetch, self.block_bytes = fetch, block_bytes
        self.blocks: LruCache[tuple[RemoteObject, int, int], _Block] = LruCache(kept_bytes, lambda block: block.cost)
        self._lock = threading.Lock()

    def get(self, of: RemoteObject, start: int, end: int) -> bytes:
        block, is_new = self._block(of, start, end)
        if is_new:
            self._fetch(block)
        return block.result()

    def request_ahead(self, of: RemoteObject, start: int, end: int) -> None:
        block, is_new = self._block(of, start, end)
        if is_new:
            # As a daemon: what may not be needed in the end does not keep the process alive.
            threading.Thread(target=self._fetch, args=(block,), name="read ahead", daemon=True).start()

    def _block(self, of: RemoteObject, start: int, end: int) -> tuple[_Block, bool]:
        with self._lock:
            block = self.blocks.get((of, start, end))
            # Those who waited for one that failed got the error; the next may try again, unless that cannot help.
            if block is None or (block.done() and not isinstance(block.exception(), Changed | None)):
                return self.blocks.put((of, start, end), _Block(of, start, end)), True
            return block, False

    def _fetch(self, block: _Block) -> None:
        try:
            block.set_result(self.fetch(*block.key))
        except BaseException as error:
            block.set_exception(error)


class BlockReader:
    """Any bytes of an object, by its blocks; `caution` says how many in a row are worth one ahead."""

    def __init__(self, of: RemoteObject, caution: int = _CAUTION) -> None:
        if of.size is None:
            raise Refused(of.url, "its server does not send its size")
        self.of, self.size, self._caution = of, of.size, caution
        self._lock = threading.Lock()
        self._last, self._run = -1, 0

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, or to the end of the object. Raises as `get_range` does."""
        pieces, end = [], min(end, self.size)
        while start < end:
            first, last = self._request(start, end)
            pieces.append(_cache.get(self.of, first, last)[start - first : end - first])
            start = last
        return b"".join(pieces)

    def file(self) -> RangeFile:
        return RangeFile(self.size, self.read)

    def _request(self, start: int, end: int) -> tuple[int, int]:
        """The block with the byte at `start`, of those that are read to `end`; further ones are requested ahead."""
        size = _cache.block_bytes
        number = start // size
        wanted = max((end - 1) // size - number, self._ahead(number))
        for first in range((number + 1) * size, self.size, size)[: min(wanted, MOST_AHEAD)]:
            _cache.request_ahead(self.of, first, min(first + size, self.size))
        return number * size, min((number + 1) * size, self.size)

    def _ahead(self, number: int) -> int:
        """How many blocks after this one to request; none where no new ground is entered, or after a leap."""
        with self._lock:
            if not self._last - MOST_AHEAD <= number <= self._last + 1:
                self._last, self._run = number, 0
            elif number > self._last:
                self._last, self._run = number, self._run + 1
                return self._run // self._caution
            return 0


class RangeReader(BlockReader):
    """Any bytes of an object of which mostly some `ranges` are read, in their order: each is one request, and several
    are on their way at a time. Other bytes are requested as they are needed.
    """

    ranges: Sequence[tuple[int, int]] = ()

    def _request(self, start: int, end: int) -> tuple[int, int]:
        if self.size <= _cache.block_bytes:  # all of it will be needed for the images
            return super()._request(start, end)
        after = bisect.bisect_right(self.ranges, (start, self.size))
        if after and start < self.ranges[after - 1][1]:
            for first, last in self.ranges[after : after + _RANGES_AHEAD]:
                _cache.request_ahead(self.of, first, last)
            return self.ranges[after - 1]
        return start, min([end, *(first for first, _ in self.ranges[after : after + 1])])


class RangeFile(io.RawIOBase):
    """A file of `size` bytes that can be read anywhere: `read` gives those from a start to an end, or as many as there
    are. `failure` is what it raised last: libraries between take it for damage.
    """

    def __init__(
        self, size: int, read: Callable[[int, int], bytes], close: Callable[[], object] = lambda: None
    ) -> None:
        self.size, self.position = size, 0
        self._read, self._close = read, close
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("seek before the beginning of the file")
        self.position = start + offset
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self._read(self.position, min(self.position + len(buffer), self.size))
        except Exception as error:
            self.failure = error
            raise
        memoryview(buffer)[: len(data)] = data
        self.position += len(data)
        return len(data)

    def close(self) -> None:
        self._close()
        super().close()


def shared_reader(of: RemoteObject) -> BlockReader:
    """The reader that all who read images from this object share; the last ones are kept."""
    return _readers.get(of) or _readers.put(of, BlockReader(of))


def use_cache(cache: BlockCache | None = None) -> None:
    """Start again, as after a fork: requests that were on their way belong to the other process."""
    global _cache, _readers
    _cache, _readers = cache or BlockCache(), LruCache(_READERS)


_cache = BlockCache()
_readers: LruCache[RemoteObject, BlockReader] = LruCache(_READERS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=use_cache)
