"""What `--json` and the tables call things: one place, so that a key means the same in every command.

path label confidence score p_value is_ood verdict      an image and its verdict: *known* or *none of these*
label_2 confidence_2 …                                  the next most similar classes (`--top-k`)
path reason                                             an image that could not be read
detector score threshold keep guarantee                 a detector: its folder, score, threshold, and what that keeps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deltaenergy.detector.verdicts import verdict_word

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector.detector import Detector, Predictions, Verdict
    from deltaenergy.scores.base import Score
    from deltaenergy.scoring import Scored

COLUMNS = ("path", "label", "confidence", "score", "p_value", "is_ood", "verdict")


class ScoreKeys(NamedTuple):
    """The keys of one score's value, p-value, verdict, and verdict in words."""

    value: str
    p_value: str
    is_ood: str
    verdict: str


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """One image with its verdict."""
    return {"path": verdict.id, **{name: getattr(verdict, name) for name in COLUMNS[1:]}}


def scored_records(
    scored: Scored, classes: Sequence[str], scores: Sequence[Score], verdicts: Sequence[Predictions]
) -> list[dict[str, Any]]:
    """One record per image; without a threshold (`verdicts` empty) p_value, is_ood and verdict are None.

    One score has the plain keys. Of several, each has a key of its own name for its value, and its name stands behind
    p_value, is_ood and verdict.
    """
    records: list[dict[str, Any]] = []
    for i, item in enumerate(scored.items):
        record: dict[str, Any] = {
            "path": item.id,
            "label": classes[scored.predicted[i]],
            "confidence": float(scored.confidence[i]),
        }
        if scored.top is not None and scored.top_confidence is not None:
            for rank in range(1, scored.top.shape[1]):
                label, confidence = rank_keys(rank + 1)
                record[label] = classes[scored.top[i, rank]]
                record[confidence] = float(scored.top_confidence[i, rank])
        for position, score in enumerate(scores):
            keys = score_keys(score, scores)
            verdict = verdicts[position][i] if verdicts else None
            record[keys.value] = float(scored.values[score.spec][i])
            record[keys.p_value] = None if verdict is None else verdict.p_value
            record[keys.is_ood] = None if verdict is None else verdict.is_ood
            record[keys.verdict] = None if verdict is None else verdict_word(verdict.is_ood)
        records.append(record)
    return records


def record_columns(scores: Sequence[Score], top_k: int = 1) -> list[str]:
    """The keys of `scored_records`, in order."""
    ranks = [key for rank in range(2, top_k + 1) for key in rank_keys(rank)]
    return ["path", "label", "confidence", *ranks, *(key for score in scores for key in score_keys(score, scores))]


def rank_keys(rank: int) -> tuple[str, str]:
    """The keys of the class that comes in this place, and of its probability."""
    return f"label_{rank}", f"confidence_{rank}"


def score_keys(score: Score, scores: Sequence[Score]) -> ScoreKeys:
    """The keys of a score: plain if it is alone."""
    if len(scores) == 1:
        return ScoreKeys("score", "p_value", "is_ood", "verdict")
    return ScoreKeys(score.spec, f"p_value {score.spec}", f"is_ood {score.spec}", f"verdict {score.spec}")


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
