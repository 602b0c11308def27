"""What `--json` and the tables call things: one place, so that a key means the same in every command.

path label confidence score_name …           an image and its verdict (`detector.verdicts.COLUMNS`)
path reason                                  an image that could not be read
detector score threshold keep guarantee      a detector: its folder, score, threshold, and what that keeps
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector.detector import Detector


def unreadable_records(unreadable: Iterable[Unreadable]) -> list[dict[str, str]]:
    """The images that were skipped, and why."""
    return [{"path": image.id, "reason": image.reason} for image in unreadable]


def detector_record(folder: str | Path, detector: Detector) -> dict[str, Any]:
    """A saved detector."""
    return {
        "detector": str(folder),
        "score": detector.score.spec,
        "threshold": detector.threshold,
        "keep": None if detector.guarantee is None else detector.guarantee.keep,
        "guarantee": guarantee_record(detector),
    }


def guarantee_record(detector: Detector) -> dict[str, Any] | None:
    """What a detector's threshold guarantees."""
    return None if detector.guarantee is None else detector.guarantee.to_dict()
