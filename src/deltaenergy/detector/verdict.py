"""One verdict, and the columns of a table of verdicts: the same in Python, files, the service and on Ray.

    path label confidence score_name score p_value is_ood verdict answer more_like [label_2 confidence_2 …]

This module imports nothing heavy: commands name columns before they load a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# The two verdicts, the same in tables, JSON, reports and folder names.
KNOWN = "known"
NONE_OF_THESE = "none of these"
# The columns and their Arrow types; those of the next closest classes follow.
COLUMNS = {
    "path": "string",
    "label": "string",
    "confidence": "float64",
    "score_name": "string",
    "score": "float64",
    "p_value": "float64",
    "is_ood": "bool",
    "verdict": "string",
    "answer": "string",
    "more_like": "string",
}


def verdict_word(is_ood: bool) -> str:
    """*known* or *none of these*."""
    return NONE_OF_THESE if is_ood else KNOWN


def verdict_columns(classes: int = 1) -> list[str]:
    """The names of the columns, with this many of the closest classes."""
    return [*COLUMNS, *(f"{name}_{rank}" for rank in range(2, classes + 1) for name in ("label", "confidence"))]


def verdict_schema(classes: int = 1) -> pa.Schema:
    """The Arrow schema of a table with this many of the closest classes."""
    return arrow_schema(verdict_columns(classes))


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(COLUMNS[name.rstrip("_0123456789")])) for name in columns])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one image.

    Attributes:
        path: the image's path, or its position in the input.
        label: the closest class; meaningful when the image is known.
        confidence: softmax probability of that class at the model's own temperature.
        score_name: the score, with its parameters.
        score: larger = more in-distribution.
        p_value: share of calibration images with a score at most this one (conformal; see `Detector.calibrate`); None
            if not valid.
        is_ood: whether the score is below the threshold by more than rounding (see `Calibration.slack`), or NaN; None
            without a threshold.
        top: the closest classes with their probabilities, best first.
        more_like: closest word to a rejected image, if the score has words.
    """

    path: str
    label: str
    confidence: float
    score_name: str
    score: float
    p_value: float | None
    is_ood: bool | None
    top: tuple[tuple[str, float], ...] = ()
    more_like: str | None = None

    @property
    def verdict(self) -> str | None:
        """*known* or *none of these*; None without a threshold."""
        return None if self.is_ood is None else verdict_word(self.is_ood)

    @property
    def answer(self) -> str | None:
        """The class, or *none of these*; None without a threshold."""
        return None if self.is_ood is None else NONE_OF_THESE if self.is_ood else self.label

    def to_dict(self) -> dict[str, Any]:
        """The row of the table."""
        row: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        for rank, (label, confidence) in enumerate(self.top[1:], start=2):
            row |= {f"label_{rank}": label, f"confidence_{rank}": confidence}
        return row


@dataclass(frozen=True)
class Counts:
    """Number of images with a verdict, and of rejected images (None without a threshold)."""

    images: int
    rejected: int | None
    unreadable: int

    def to_dict(self) -> dict[str, int | None]:
        """By verdict."""
        known = None if self.rejected is None else self.images - self.rejected
        return {KNOWN: known, NONE_OF_THESE: self.rejected, "unreadable": self.unreadable}
