"""Images as a stream: gone through any number of times, a few at a time in memory, each with its own id.

An image that is given twice keeps both positions; the second is called "name (2)", or by the next number that no image
before it has. To see that an id repeats, eight bytes of each are remembered.
"""

from __future__ import annotations

import bisect
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from deltaenergy.core.needs import Lack, Need
from deltaenergy.data.items import ImageItem


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
        seen, repeats, count = SeenHashes(), Counter[str](), 0
        for item in items:
            name = item.id
            while hash(name) in seen:
                repeats[item.id] += 1
                name = f"{item.id} ({repeats[item.id] + 1})"
            seen.add(hash(name))
            count += 1
            yield item if name == item.id else replace(item, id=name)
        self.count, self._unique = count, not repeats

    def survey(self) -> int:
        """Go through all names once; gives how many there are."""
        if self.count is None:
            self.count = sum(1 for _ in self)
        return self.count

    def _items(self) -> Iterator[ImageItem]:
        begun, self._begun = self._begun, None
        if begun is None:
            self.others.count, self.others.first = 0, None
        return self._listing() if begun is None else begun


class SeenHashes:
    """A set of 64-bit numbers in eight bytes each, besides the last ones: sorted arrays, each at least twice as long as
    the next.
    """

    def __init__(self, recent: int = 1 << 12) -> None:
        self._most, self._recent = recent, set[int]()
        self._runs: list[array[int]] = []

    def __contains__(self, number: int) -> bool:
        if number in self._recent:
            return True
        for run in self._runs:
            position = bisect.bisect_left(run, number)
            if position < len(run) and run[position] == number:
                return True
        return False

    def add(self, number: int) -> None:
        self._recent.add(number)
        if len(self._recent) < self._most:
            return
        new = array("q", sorted(self._recent))
        self._recent.clear()
        while self._runs and len(self._runs[-1]) < 2 * len(new):
            both = np.concatenate([self._runs.pop(), new])
            both.sort(kind="stable")  # which finds the two sorted runs and merges them
            new = array("q", both.tobytes())
        self._runs.append(new)
