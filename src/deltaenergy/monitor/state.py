"""What a monitor remembers, in bounded memory: the rate over time, classes, the last rejected images.

On disk it is one small JSON file with a checksum, written atomically. It has a hash of all that decides a verdict: a
state of another detector is refused.
"""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import astuple, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, write_text
from deltaenergy.files.artifact import check_seal, sealed

if TYPE_CHECKING:
    from deltaenergy.monitor.monitor import Monitor

FORMAT = "deltaenergy monitor 3"
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


def state_of(monitor: Monitor) -> dict[str, Any]:
    history, counts = monitor.history, monitor.cells.counts
    return {
        "format": FORMAT,
        "detector": monitor.version,
        "alpha": monitor.alpha,
        "delta": monitor.delta,
        "seed": monitor.seed,
        "images": monitor.images,
        "flagged": monitor.flagged,
        "log_p": monitor.log_p,
        "cells": [[int(cell), int(counts[cell])] for cell in np.flatnonzero(counts)],
        "restarts": {
            test: {"logs": bets.logs.tolist(), "best": bets.best.tolist(), "starts": bets.starts.tolist()}
            for test, bets in monitor.restarts.items()
        },
        "highest": dict(monitor.highest),
        "alarms": dict(monitor.alarms),
        "since": monitor.since,
        "classes": dict(history.classes),
        "recent": list(history.recent),
        "flagged_images": [
            [image.number, image.id, image.label, image.score if math.isfinite(image.score) else None, image.file]
            for image in history.flagged
        ],
        "block_size": history.block_size,
        "blocks": [astuple(block) for block in history.blocks],
    }


def restore(monitor: Monitor, state: dict[str, Any]) -> None:
    monitor.images, monitor.flagged, monitor.log_p = state["images"], state["flagged"], state["log_p"]
    for cell, count in state["cells"]:
        monitor.cells.counts[cell] = count
    for test, bets in monitor.restarts.items():
        saved = state["restarts"][test]
        bets.logs, bets.best = (np.array(saved[name], np.float64) for name in ("logs", "best"))
        bets.starts, bets.images = np.array(saved["starts"], np.int64), monitor.images
    monitor.highest, monitor.alarms, monitor.since = state["highest"], state["alarms"], state["since"]
    history = monitor.history
    history.block_size, history.blocks = state["block_size"], [Block(*row) for row in state["blocks"]]
    history.classes, history.recent = state["classes"], deque(state["recent"], RECENT)
    for number, name, label, score, file in state["flagged_images"]:
        history.flagged.append(FlaggedImage(number, name, label, math.nan if score is None else score, file))


def write_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write the state from `state_of`; the caller holds the folder's lock."""
    write_text(path, json.dumps(sealed(state), ensure_ascii=False, allow_nan=False) + "\n")


def read_state(path: str | Path) -> dict[str, Any]:
    """The state in a file, if it is undamaged."""
    state: Any = read_json(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a monitor state ({FORMAT}). Start another state file.")
    check_seal(state, path)
    return state


def check_version(state: dict[str, Any], version: str, path: str | Path) -> None:
    """Raise `ArtifactError` unless the state belongs to the detector with this version."""
    if state["detector"] != version:
        raise ArtifactError(
            f"{path} belongs to another detector, or to this one before it was recalibrated: its counts are not valid "
            "here. Start another state file."
        )
