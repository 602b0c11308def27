"""What a monitor remembers, in bounded memory: the rate over time, classes, the last rejected images."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

# The rate over time has at most this many blocks; beyond that, neighbours are merged.
MOST_BLOCKS = 128
# The classes of this many last images are compared with those of all earlier images.
RECENT = 500
# Number of last rejected images to remember.
MOST_FLAGGED = 48
# Image names are cut to this length: they may come from anywhere.
LONGEST_NAME = 1000


@dataclass(frozen=True)
class Block:
    """A block of images: number, number rejected, the logarithm of each test's evidence at its end, and the time."""

    images: int
    flagged: int
    rate: float
    shift: float
    time: str


@dataclass(frozen=True)
class FlaggedImage:
    """A rejected image: its number, name, class and score, and whether the name is a file."""

    number: int
    id: str
    label: str
    score: float
    file: bool


@dataclass(frozen=True)
class ClassChange:
    """A class among the last and all earlier images: how many it is closest to, and how many were rejected."""

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
    flagged: deque[FlaggedImage] = field(default_factory=lambda: deque(maxlen=MOST_FLAGGED))

    def add(self, image: FlaggedImage, flagged: bool, rate: float, shift: float, time: str) -> None:
        images, before = self.classes.get(image.label, (0, 0))
        self.classes[image.label] = images + 1, before + flagged
        self.recent.append((image.label, flagged))
        if flagged:
            self.flagged.append(image)
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
        """Every class, sorted by how many more images are rejected than its earlier share predicts."""
        recent: dict[str, list[int]] = {}
        for label, flagged in self.recent:
            entry = recent.setdefault(label, [0, 0])
            entry[0] += 1
            entry[1] += flagged
        changes = []
        for label, (images, hits) in self.classes.items():
            now, now_hits = recent.get(label, [0, 0])
            changes.append(ClassChange(label, images - now, hits - now_hits, now, now_hits))
        before = sum(change.before for change in changes)
        flagged_before = sum(change.before_flagged for change in changes)
        return sorted(changes, key=lambda change: -_excess(change, flagged_before, before))


def _excess(change: ClassChange, flagged: int, images: int) -> float:
    """Rejected images of a class beyond the number its earlier share, shrunk to that of all classes, predicts."""
    overall = (flagged + 0.5) / (images + 1)
    usual = (change.before_flagged + overall) / (change.before + 1)
    return change.recent_flagged - change.recent * usual
