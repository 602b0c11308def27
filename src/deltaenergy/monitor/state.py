"""A monitor on disk: one small JSON file, written whole or not at all, that carries a checksum of itself.

It names its detector by a hash of all that decides a verdict: a state of another detector is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from deltaenergy.detector.detector import Detector
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import FolderLock, check_writable, read_json, write_text
from deltaenergy.files.artifact import check_seal, sealed
from deltaenergy.files.schema import Check, Where, list_of, mapping_of, number, optional, record, text, truth, whole
from deltaenergy.monitor.evidence import EXPONENTS
from deltaenergy.monitor.history import MOST_BLOCKS, MOST_PICTURES, RECENT, Block, SeenPicture
from deltaenergy.monitor.monitor import ALPHA, DELTA, LARGEST_SEED, TESTS, Monitor
from deltaenergy.monitor.rate import STAKES
from deltaenergy.monitor.restarts import log_weight

FORMAT = "deltaenergy monitor 2"
_SHARE = number(above=0, high=1 - 2**-53)
_COUNTS = list_of(whole(0), length=2)
# Logarithms of another machine may end in another digit.
_ROUNDING = 1e-9


def _row(*checks: Check) -> Check:
    """A list of values, each of its own kind."""

    def checked(value: Any, where: Where) -> None:
        list_of(lambda *_: None, length=len(checks))(value, where)
        for position, (element, check) in enumerate(zip(value, checks)):
            check(element, where.at(position))

    return checked


_ENTRIES = {
    "format": text(),
    "checksum": text(),
    "detector": text(matching="[0-9a-f]{16}"),
    "alpha": _SHARE,
    "delta": _SHARE,
    "seed": whole(0, LARGEST_SEED),
    "images": whole(0),
    "flagged": whole(0),
    "log_p": number(high=0),
    "cells": list_of(_COUNTS),
    "highest": record({test: number(low=0) for test in TESTS}),
    "alarms": record({test: optional(whole(1)) for test in TESTS}),
    "classes": mapping_of(_COUNTS),
    "recent": list_of(_row(text(), truth())),
    "pictures": list_of(_row(whole(1), text(blank=True), text(), optional(number()), truth())),
    "block_size": whole(1),
    "blocks": list_of(_row(whole(1), whole(0), number(), number(), text())),
}
_RESTARTS = {"rate": list_of(number(), length=len(STAKES)), "shift": list_of(number(), length=len(EXPONENTS))}
_RECORD = record({**_ENTRIES, "restarts": record(_RESTARTS)})


def save_state(monitor: Monitor, path: str | Path) -> None:
    """Write the state of `monitor` in place of one of the same detector; any other file is left as it is."""
    with FolderLock(Path(os.path.realpath(path)).parent):
        if os.path.lexists(path):
            _check_own(_read(path), monitor, path)
        write_state(path, state_of(monitor))


def write_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write what `state_of` gave, for a caller that holds the place."""
    write_text(path, json.dumps(sealed(state), ensure_ascii=False, allow_nan=False) + "\n")


def load_state(path: str | Path, detector: Detector) -> Monitor:
    """The monitor that was saved, with its detector."""
    saved = _read(path)
    monitor = Monitor(detector, alpha=saved["alpha"], delta=saved["delta"], seed=saved["seed"])
    _check_own(saved, monitor, path)
    _check_counts(saved, monitor, Where(str(path)))
    monitor.images, monitor.flagged, monitor.log_p = saved["images"], saved["flagged"], float(saved["log_p"])
    for cell, count in saved["cells"]:
        monitor.cells.counts[cell] = count
    for test, restarts in monitor.restarts.items():
        restarts.logs, restarts.images = np.array(saved["restarts"][test], np.float64), monitor.images
    monitor.highest = {test: float(saved["highest"][test]) for test in TESTS}
    monitor.alarms = dict(saved["alarms"])
    history = monitor.history
    history.block_size = saved["block_size"]
    history.blocks = [Block(*row) for row in saved["blocks"]]
    history.classes = {label: (images, flagged) for label, (images, flagged) in saved["classes"].items()}
    history.recent = deque(((label, flagged) for label, flagged in saved["recent"]), maxlen=RECENT)
    history.pictures = deque(
        (
            SeenPicture(number, name, label, math.nan if score is None else score, file)
            for number, name, label, score, file in saved["pictures"]
        ),
        maxlen=MOST_PICTURES,
    )
    return monitor


@contextlib.contextmanager
def open_monitor(
    path: str | Path,
    detector: Detector,
    *,
    alpha: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
) -> Iterator[Monitor]:
    """The monitor of a state file, new if there is none; the place is held for the block, and written after it.

    Settings are those of the file; ones that are given must be the same. Should the block fail, the state is written
    all the same: what was looked at, was looked at.
    """
    check_writable(path)
    with FolderLock(Path(os.path.realpath(path)).parent):
        if os.path.lexists(path):
            monitor = load_state(path, detector)
            for name, wanted in (("alpha", alpha), ("delta", delta), ("seed", seed)):
                if wanted is not None and wanted != getattr(monitor, name):
                    raise InputError(
                        f"{path} was begun with {name} {getattr(monitor, name):g}, not {wanted:g}: a bound cannot be "
                        "changed on the way. Leave it out, or begin another state file."
                    )
        else:
            monitor = Monitor(
                detector,
                alpha=ALPHA if alpha is None else alpha,
                delta=DELTA if delta is None else delta,
                seed=0 if seed is None else seed,
            )
        before = monitor.images
        try:
            yield monitor
        except BaseException:
            if monitor.images > before:
                write_state(path, state_of(monitor))
            raise
        write_state(path, state_of(monitor))


def state_of(monitor: Monitor) -> dict[str, Any]:
    """All that is remembered, as JSON values."""
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
        "restarts": {test: one.logs.tolist() for test, one in monitor.restarts.items()},
        "highest": dict(monitor.highest),
        "alarms": dict(monitor.alarms),
        "classes": {label: list(both) for label, both in history.classes.items()},
        "recent": [list(entry) for entry in history.recent],
        "pictures": [
            [seen.number, seen.id, seen.label, seen.score if math.isfinite(seen.score) else None, seen.file]
            for seen in history.pictures
        ],
        "block_size": history.block_size,
        "blocks": [list(astuple(block)) for block in history.blocks],
    }


def _read(path: str | Path) -> dict[str, Any]:
    saved: Any = read_json(path)
    where = Where(str(path))
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ArtifactError(f"{path} is no state of a monitor ({FORMAT}), so it is left as it is. Give another name.")
    _RECORD(saved, where)
    check_seal(saved, path)
    return saved


def _check_own(saved: dict[str, Any], monitor: Monitor, path: str | Path) -> None:
    if saved["detector"] != monitor.version:
        raise ArtifactError(
            f"{path} belongs to another detector, or to this one before it was calibrated anew: its counts mean "
            "nothing here. Begin another state file."
        )


def _check_counts(saved: dict[str, Any], monitor: Monitor, where: Where) -> None:
    """Counts must agree with each other."""
    images, flagged = saved["images"], saved["flagged"]
    cells = [cell for cell, _ in saved["cells"]]
    if cells != sorted(set(cells)) or (cells and cells[-1] >= len(monitor.cells.counts)):
        raise where.at("cells").wrong(saved["cells"], f"cells below {len(monitor.cells.counts)} in order")
    for name, total in (
        ("cells", sum(count for _, count in saved["cells"])),
        ("classes", sum(count for count, _ in saved["classes"].values())),
        ("blocks", sum(row[0] for row in saved["blocks"])),
    ):
        if total != images:
            raise where.at(name).wrong(total, f"{images} images in all")
    for name, total in (
        ("classes", sum(count for _, count in saved["classes"].values())),
        ("blocks", sum(row[1] for row in saved["blocks"])),
    ):
        if total != flagged:
            raise where.at(name).wrong(total, f"{flagged} flagged images in all")
    if len(saved["blocks"]) > MOST_BLOCKS or len(saved["recent"]) > RECENT or len(saved["pictures"]) > MOST_PICTURES:
        raise where.wrong(saved, "no more blocks, recent images and pictures than a monitor keeps")
    least = log_weight(images + 1) - _ROUNDING
    for test, logs in saved["restarts"].items():
        if min(logs) < least:
            raise where.at("restarts").at(test).wrong(min(logs), f"{least:.6g} or more, the share that begins next")
    named = set(monitor.detector.classifier.classes)
    for entry, labels in (("classes", saved["classes"]), ("recent", [row[0] for row in saved["recent"]])):
        strange = next((label for label in labels if label not in named), None)
        if strange is not None:
            raise where.at(entry).wrong(strange, "classes of the detector")
