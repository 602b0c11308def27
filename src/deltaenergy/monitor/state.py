"""A monitor on disk: one small JSON file with a checksum, written atomically.

It has a hash of all that decides a verdict: a state of another detector is refused.
"""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, write_text
from deltaenergy.files.artifact import check_seal, sealed
from deltaenergy.monitor.history import MOST_FLAGGED, RECENT, Block, FlaggedImage

if TYPE_CHECKING:
    from deltaenergy.monitor.monitor import Monitor

FORMAT = "deltaenergy monitor 3"


def state_of(monitor: Monitor) -> dict[str, Any]:
    """The state as JSON values."""
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
        "classes": {label: list(both) for label, both in history.classes.items()},
        "recent": [list(entry) for entry in history.recent],
        "flagged_images": [
            [image.number, image.id, image.label, image.score if math.isfinite(image.score) else None, image.file]
            for image in history.flagged
        ],
        "block_size": history.block_size,
        "blocks": [list(astuple(block)) for block in history.blocks],
    }


def restore(monitor: Monitor, state: dict[str, Any]) -> None:
    """Restore the state from `state_of` into a new monitor."""
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
    history.classes = {label: (images, flagged) for label, (images, flagged) in state["classes"].items()}
    history.recent = deque(((label, flagged) for label, flagged in state["recent"]), maxlen=RECENT)
    history.flagged = deque(
        (
            FlaggedImage(number, name, label, math.nan if score is None else score, file)
            for number, name, label, score, file in state["flagged_images"]
        ),
        maxlen=MOST_FLAGGED,
    )


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
