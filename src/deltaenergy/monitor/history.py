"""What a monitor remembers of the images, in bounded room: the rate over time, classes, the last flagged pictures."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

# The course of the rate has at most so many blocks; beyond, neighbours become one.
MOST_BLOCKS = 128
# Classes of the last so many images are compared with those of all before.
RECENT = 500
# So many flagged pictures are remembered, the last ones.
MOST_PICTURES = 48
# Names of pictures are cut at this length: they may come from anywhere.
LONGEST_NAME = 1000


@dataclass(frozen=True)
class Block:
    """Images in a row: how many, how many flagged, and log E and log M at its end, at what time."""

    images: int
    flagged: int
    rate: float
    shift: float
    time: str


@dataclass(frozen=True)
class SeenPicture:
    """A flagged image: the how-manieth it was, its name, class and score, and whether the name is that of a file."""

    number: int
    id: str
    label: str
    score: float
    file: bool


@dataclass(frozen=True)
class ClassChange:
    """A class among the last images and among all before: how many are named so, and how many of these are flagged."""

    label: str
    before: int
    before_flagged: int
    recent: int
    recent_flagged: int


@dataclass
class History:
    """The images so far, in a few kilobytes."""

    blocks: list[Block] = field(default_factory=list)
    block_size: int = 1
    classes: dict[str, tuple[int, int]] = field(default_factory=dict)
    recent: deque[tuple[str, bool]] = field(default_factory=lambda: deque(maxlen=RECENT))
    pictures: deque[SeenPicture] = field(default_factory=lambda: deque(maxlen=MOST_PICTURES))

    def add(self, picture: SeenPicture, flagged: bool, rate: float, shift: float, time: str) -> None:
        """One more image."""
        images, before = self.classes.get(picture.label, (0, 0))
        self.classes[picture.label] = images + 1, before + flagged
        self.recent.append((picture.label, flagged))
        if flagged:
            self.pictures.append(picture)
        if self.blocks and self.blocks[-1].images < self.block_size:
            last = self.blocks.pop()
            self.blocks.append(Block(last.images + 1, last.flagged + flagged, rate, shift, time))
        else:
            self.blocks.append(Block(1, int(flagged), rate, shift, time))
        if len(self.blocks) == MOST_BLOCKS and self.blocks[-1].images == self.block_size:
            pairs = zip(islice(self.blocks, 0, None, 2), islice(self.blocks, 1, None, 2))
            self.blocks = [Block(a.images + b.images, a.flagged + b.flagged, b.rate, b.shift, b.time) for a, b in pairs]
            self.block_size *= 2

    def changes(self) -> list[ClassChange]:
        """Every class, those first of which more are flagged than before: by the excess over their share before."""
        recent: dict[str, list[int]] = {}
        for label, flagged in self.recent:
            entry = recent.setdefault(label, [0, 0])
            entry[0] += 1
            entry[1] += flagged
        found = []
        for label, (images, hits) in self.classes.items():
            now, now_hits = recent.get(label, [0, 0])
            found.append(ClassChange(label, images - now, hits - now_hits, now, now_hits))
        before = sum(change.before for change in found)
        flagged_before = sum(change.before_flagged for change in found)
        return sorted(found, key=lambda change: -_excess(change, flagged_before, before))


def _excess(change: ClassChange, flagged: int, images: int) -> float:
    """Flagged images of a class beyond what its own share before, drawn to that of all, lets expect."""
    overall = (flagged + 0.5) / (images + 1)
    usual = (change.before_flagged + overall) / (change.before + 1)
    return change.recent_flagged - change.recent * usual


def changed_since(blocks: Sequence[Block]) -> int | None:
    """How many images came before the rate most likely rose: the cut into two rates of the largest likelihood.

    None where no cut has a higher rate behind it than before.
    """
    total, flagged = sum(block.images for block in blocks), sum(block.flagged for block in blocks)
    best, found = 0.0, None
    images = hits = 0
    for block in blocks[:-1]:
        images, hits = images + block.images, hits + block.flagged
        rest, rest_hits = total - images, flagged - hits
        if rest_hits * images > hits * rest:
            gain = _likelihood(hits, images) + _likelihood(rest_hits, rest) - _likelihood(flagged, total)
            if gain > best:
                best, found = gain, images
    return found


def _likelihood(hits: int, images: int) -> float:
    """The largest log-likelihood of that many hits."""
    return sum(count * math.log(count / images) for count in (hits, images - hits) if count)
