"""Images as a stream: gone through any number of times, a few at a time in memory, each with an id of its own.

An image that is given twice keeps both places; the second is called "name (2)", or by the next number that is free. To
see that an id repeats, eight bytes of each are remembered. Only then are all names looked at twice more: whether
"name (2)" is free depends on those still to come.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from deltaenergy.data.items import ImageItem

if TYPE_CHECKING:
    import numpy.typing as npt

# Names are looked up in blocks, the first ones small, so that the first images do not wait.
_BLOCK = 1024
_NUMBERED = re.compile(r"(.*) \([1-9][0-9]*\)", re.DOTALL)


class ImageStream:
    """Images in a stable order. Iterating gives `ImageItem`s, each time from the first.

    What is wrong with the images is an `InputError`: at once if it can be seen from the first image, else when its
    turn comes, or in `survey`.

    Attributes:
        count: how many images there are, None while that is unknown. One who goes through them all will know.
        stored: whether some of them come from a feature store.
    """

    def __init__(
        self,
        listing: Callable[[], Iterator[ImageItem]],
        count: int | None = None,
        *,
        stored: bool = False,
        unique: bool = False,
    ) -> None:
        """`listing` gives the images from the first on, as often as it is called. Unless they are `unique`, their ids
        may repeat.
        """
        self._listing, self.count, self.stored = listing, count, stored
        self._repeats = _Repeats() if unique else None
        begun = listing()
        # Looks at the first image, and keeps what was begun for the first who wants it.
        self._begun: Iterator[ImageItem] | None = chain(list(islice(begun, 1)), begun)

    def __iter__(self) -> Iterator[ImageItem]:
        if self._repeats is not None:
            yield from self._repeats.renamed(self._items())
            return
        seen, done = SeenHashes(), 0
        for block in _blocks(self._items()):
            if seen.add(_hashes(item.id for item in block)):
                self.survey()
                yield from islice(iter(self), done, None)
                return
            yield from block
            done += len(block)
        self.count, self._repeats = done, _Repeats()

    def survey(self) -> int:
        """Go through all names once, so that whatever is wrong with them is said now; gives how many there are."""
        if self._repeats is None or self.count is None:
            seen, count = SeenHashes(), 0
            for block in _blocks(self._items()):
                seen.add(_hashes(item.id for item in block))
                count += len(block)
            twice = seen.repeated()
            self._repeats = _Repeats.among(_blocks(self._listing()), twice) if len(twice) else _Repeats()
            self.count = count
        return self.count

    def first(self, count: int) -> list[ImageItem]:
        """The first images, at most `count` of them."""
        return list(islice(iter(self), count))

    def _items(self) -> Iterator[ImageItem]:
        begun, self._begun = self._begun, None
        return self._listing() if begun is None else begun


@dataclass
class _Repeats:
    """Ids that come more than once (or seem to, by their hashes), and of their numbered forms those that are ids."""

    ids: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def among(cls, blocks: Iterable[list[ImageItem]], twice: npt.NDArray[np.int64]) -> _Repeats:
        """Those whose hashes are among `twice`."""
        found = cls()
        for block in blocks:
            hashes = _hashes(item.id for item in block)
            found.ids.update(block[place].id for place in np.flatnonzero(_are_in(twice, hashes)))
            numbered = [(item.id, match[1]) for item in block if (match := _NUMBERED.fullmatch(item.id))]
            inside = _are_in(twice, _hashes(stem for _, stem in numbered))
            found.taken.update(name for (name, _), repeats in zip(numbered, inside) if repeats)
        return found

    def renamed(self, items: Iterable[ImageItem]) -> Iterator[ImageItem]:
        """The items; of equal ids, all but the first get the next number that no id has."""
        seen: Counter[str] = Counter()
        for item in items:
            name = item.id
            if name in self.ids:
                seen[name] += 1
                if seen[name] > 1:
                    while (numbered := f"{name} ({seen[name]})") in self.taken:
                        seen[name] += 1
                    item = replace(item, id=numbered)
            yield item


class SeenHashes:
    """A set of 64-bit numbers in eight bytes each: sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.int64]] = []

    def add(self, numbers: npt.NDArray[np.int64]) -> bool:
        """Take them in; whether one of them was there before, or comes twice."""
        new = np.sort(numbers)
        repeats = bool((new[1:] == new[:-1]).any()) or any(_are_in(run, new).any() for run in self._runs)
        while self._runs and len(self._runs[-1]) < 2 * len(new):
            # Two sorted runs: this sort finds and merges them.
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")
        self._runs.append(new)
        return repeats

    def repeated(self) -> npt.NDArray[np.int64]:
        """The numbers that were added more than once, sorted."""
        everything = np.concatenate([np.zeros(0, np.int64), *self._runs])
        self._runs = []
        everything.sort()
        return np.unique(everything[1:][everything[1:] == everything[:-1]])


def _hashes(names: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, names), np.int64)


def _are_in(run: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the numbers are in a sorted run."""
    if not len(run):
        return np.zeros(len(numbers), bool)
    places = np.searchsorted(run, numbers)
    return np.equal(run[np.minimum(places, len(run) - 1)], numbers)


def _blocks(items: Iterator[ImageItem]) -> Iterator[list[ImageItem]]:
    """The items in blocks; those before an error come before it."""
    block: list[ImageItem] = []
    size = 1
    try:
        for item in items:
            block.append(item)
            if len(block) == size:
                yield block
                block, size = [], min(2 * size, _BLOCK)
    except Exception:
        yield block
        raise
    yield block
