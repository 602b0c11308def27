"""Images as a stream: gone through any number of times, a few at a time in memory, each with its own id.

An image that is given twice keeps both positions; the second is called "name (2)", or by the next number that no image
before it has. To see that an id repeats, eight bytes of each are remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from deltaenergy.core.needs import Lack, Need
from deltaenergy.data.items import ImageItem

if TYPE_CHECKING:
    import numpy.typing as npt

# Names are looked up in blocks, the first ones small, so the first images do not wait.
_BLOCK = 1024


@dataclass
class OtherFiles:
    """Files that were skipped because they are not images: how many, and the first of them."""

    count: int = 0
    first: str | None = None

    def __str__(self) -> str:
        return f"{self.count} other files, such as {self.first!r}" if self.count else "it is empty"

    def add(self, name: str, count: int = 1) -> None:
        """Count one, or several of which this is the first."""
        self.first = self.first or name or None
        self.count += count


class ImageStream:
    """Images in a stable order. Iterating gives `ImageItem`s, each time from the first.

    What is wrong with the first image's input is an `InputError` at once; an image that cannot be read later has a
    `problem`.

    Attributes:
        lacks: what cannot be computed of them: nothing.
        count: how many images there are, None while that is unknown. It is known after a whole pass.
        others: the files in folders that are not images, as far as the last pass went.
        listed: the images, if they were given as a list.
    """

    lacks: ClassVar[Mapping[Need, Lack]] = {}

    def __init__(
        self,
        listing: Callable[[], Iterator[ImageItem]],
        count: int | None = None,
        *,
        unique: bool = False,
        listed: list[ImageItem] | None = None,
        others: OtherFiles | None = None,
    ) -> None:
        """`listing` gives the images from the first, as often as it is called; ids may repeat unless `unique`."""
        self._listing, self.count, self.listed = listing, count, listed
        self.others = others or OtherFiles()
        self._unique = unique
        begun = listing()
        # Reads the first image, and keeps the listing for the first pass.
        self._begun: Iterator[ImageItem] | None = chain(list(islice(begun, 1)), begun)

    def __iter__(self) -> Iterator[ImageItem]:
        items = self._items()
        if self._unique:
            yield from items
            return
        names, done = UniqueNames(), 0
        for block in _blocks(items):
            for item, name in zip(block, names.take([item.id for item in block])):
                yield item if name == item.id else replace(item, id=name)
            done += len(block)
        self.count, self._unique = done, not names.renamed

    def survey(self) -> int:
        """Go through all names once; gives how many there are."""
        if self.count is None:
            self.count = sum(1 for _ in self)
        return self.count

    def first(self, count: int) -> list[ImageItem]:
        """The first images, at most `count` of them."""
        return list(islice(iter(self), count))

    def _items(self) -> Iterator[ImageItem]:
        begun, self._begun = self._begun, None
        if begun is None:
            self.others.count, self.others.first = 0, None
        return self._listing() if begun is None else begun


class UniqueNames:
    """Names, each given once: a name that was there before gets the next number that is free."""

    def __init__(self) -> None:
        self.renamed = False
        self._seen = SeenHashes()
        self._numbers: Counter[str] = Counter()

    def take(self, names: list[str]) -> list[str]:
        """The names under which these are new."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        repeats = self._seen.has(hashes)
        if repeats.any() or len(set(names)) < len(names):
            self.renamed = True
            taken: set[str] = set()
            for position, name in enumerate(names):
                new, is_taken = name, bool(repeats[position]) or name in taken
                while is_taken:
                    self._numbers[name] += 1
                    new = f"{name} ({self._numbers[name] + 1})"
                    is_taken = new in taken or bool(self._seen.has(np.array([hash(new)])).any())
                taken.add(new)
                names[position] = new
            hashes = np.fromiter(map(hash, names), np.int64, len(names))
        self._seen.add(hashes)
        return names


class SeenHashes:
    """A set of 64-bit numbers in eight bytes each: sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.int64]] = []

    def has(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the numbers were added before."""
        found = np.zeros(len(numbers), bool)
        for run in self._runs:
            positions = np.minimum(np.searchsorted(run, numbers), len(run) - 1)
            found |= run[positions] == numbers
        return found

    def add(self, numbers: npt.NDArray[np.int64]) -> None:
        """Take them in."""
        new = np.sort(numbers)
        while self._runs and len(self._runs[-1]) < 2 * len(new):
            # Two sorted runs: this sort finds and merges them.
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")
        if len(new):
            self._runs.append(new)


def _blocks(items: Iterable[ImageItem]) -> Iterator[list[ImageItem]]:
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
