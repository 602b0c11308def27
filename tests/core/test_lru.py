"""The cache of what was used last: its order, its size, and threads that share it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltaenergy.core.lru import LruCache


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = LruCache[str, int](3)
    for number, key in enumerate("abc"):
        assert cache.put(key, number) == number
    assert cache.get("a") == 0 and cache.get("x") is None
    cache.put("d", 3)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3] and len(cache) == 3
    cache.put("c", 9)  # in place of the old one
    assert cache.get("c") == 9 and len(cache) == 3
    cache.clear()
    assert not len(cache) and cache.get("a") is None


@pytest.mark.parametrize(
    ("sizes", "kept"), [([4, 4, 4], "bc"), ([9, 1, 1], "bc"), ([1, 1, 20], "c"), ([3, 3, 3], "abc")]
)
def test_size_is_what_counts_and_the_last_entry_stays(sizes: list[int], kept: str) -> None:
    cache = LruCache[str, bytes](9, len)
    for key, size in zip("abc", sizes):
        cache.put(key, bytes(size))
    assert [key for key in "abc" if cache.get(key) is not None] == list(kept)
    # The size of what is replaced no longer counts.
    cache.put("c", b"")
    cache.put("d", bytes(9))
    assert cache.get("c") == b"" and cache.get("d") == bytes(9) and len(cache) == 2


def test_threads_may_share_one() -> None:
    """Each finds what it put there or nothing, never another's, and the number of entries holds."""
    cache = LruCache[int, int](5)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def run(start: int) -> bool:
        for key in range(start, start + 2000):
            cache.put(key % 17, key % 17)
            if cache.get(key % 13) not in (None, key % 13):
                return False
        return True

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(run, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert len(cache) == 5
