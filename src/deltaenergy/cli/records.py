"""What `--json` and the tables call things: one place, so that a key means the same in every command.

path label confidence score p_value is_ood      an image and its verdict
path reason                                     an image that could not be read
detector score threshold keep guarantee         a detector: its folder, score, threshold, and what that keeps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector import Detector, Predictions, Verdict
    from deltaenergy.scores.base import Score
    from deltaenergy.scoring import Scored

COLUMNS = ("path", "label", "confidence", "score", "p_value", "is_ood")


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """One image with its verdict."""
    return {"path": verdict.id, **{name: getattr(verdict, name) for name in COLUMNS[1:]}}


def scored_records(
    scored: Scored, classes: Sequence[str], scores: Sequence[Score], verdicts: Sequence[Predictions]
) -> list[dict[str, Any]]:
    """One record per image; without a threshold (`verdicts` empty) p_value and is_ood are None.

    One score has the plain keys. Of several, each has a key of its own name for its value, and its name stands behind
    p_value and is_ood.
    """
    records: list[dict[str, Any]] = []
    for i, item in enumerate(scored.items):
        record: dict[str, Any] = {
            "path": item.id,
            "label": classes[scored.predicted[i]],
            "confidence": float(scored.confidence[i]),
        }
        for position, score in enumerate(scores):
            value, p_value, is_ood = score_keys(score, scores)
            record[value] = float(scored.values[score.spec][i])
            record[p_value] = verdicts[position][i].p_value if verdicts else None
            record[is_ood] = verdicts[position][i].is_ood if verdicts else None
        records.append(record)
    return records


def record_columns(scores: Sequence[Score]) -> list[str]:
    """The keys of `scored_records`, in order."""
    return ["path", "label", "confidence", *(key for score in scores for key in score_keys(score, scores))]


def score_keys(score: Score, scores: Sequence[Score]) -> tuple[str, str, str]:
    """The keys of a score's value, p-value and verdict."""
    if len(scores) == 1:
        return "score", "p_value", "is_ood"
    return score.spec, f"p_value {score.spec}", f"is_ood {score.spec}"


def unreadable_records(unreadable: Iterable[Unreadable]) -> list[dict[str, str]]:
    """The images that were skipped, and why."""
    return [{"path": image.id, "reason": image.reason} for image in unreadable]


def detector_record(folder: str | Path, detector: Detector) -> dict[str, Any]:
    """A saved detector."""
    return {
        "detector": str(folder),
        "score": detector.score.spec,
        "threshold": detector.threshold,
        "keep": detector.keep,
        "guarantee": guarantee_record(detector),
    }


def guarantee_record(detector: Detector) -> dict[str, Any] | None:
    """What a detector's threshold promises."""
    return None if detector.guarantee is None else detector.guarantee.to_dict()
