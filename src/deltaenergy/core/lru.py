"""A thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Entries by key; beyond a total size of `most`, the least recently used are dropped.

    By default each entry has size 1. The last added entry stays, whatever its size.
    """

    def __init__(self, most: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self.most, self._size_of = most, size_of
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The entry, now the most recently used; None if there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, entry: V) -> V:
        """Store an entry and return it."""
        with self._lock:
            if key in self._entries:
                self._size -= self._size_of(self._entries.pop(key))
            self._entries[key] = entry
            self._size += self._size_of(entry)
            while self._size > self.most and len(self._entries) > 1:
                self._size -= self._size_of(self._entries.popitem(last=False)[1])
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size = 0
