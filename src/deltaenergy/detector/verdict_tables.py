"""Verdicts in tables: those that `score --out` writes (CSV, JSONL, Parquet), and pandas, polars and Arrow in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.formats.table import PATH_COLUMNS, TABLE_EXTENSIONS, is_table, optional_text, read_columns
from deltaenergy.detector.predictions import Predictions, Verdict
from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.detector.detector import Detector

    Floats = npt.NDArray[np.float64]

# p-values are fractions with the number of calibration images; a text holds all their digits.
_SAME_P = 1e-9


@dataclass(frozen=True)
class ScoredRows:
    """Columns of a table: one image a row. What a table need not have is NaN, or None."""

    ids: list[str]
    labels: list[str]
    scores: Floats
    p_values: Floats
    confidences: Floats
    is_ood: list[bool | None]


def holds_verdicts(source: Any) -> bool:
    """Whether this is a table with labels and scores, as `score --out` writes it, and not only a list of images."""
    if not is_table(source):
        try:
            path = Path(source)
        except TypeError:
            return False
        if path.suffix.lower() not in TABLE_EXTENSIONS or not path.is_file():
            return False
    label, score = read_columns(source, [("label",), ("score",)])
    return label is not None and score is not None


def read_rows(source: Any, spec: str | None = None) -> ScoredRows:
    """The rows of a table. Where it holds several scores, `spec` names the one that is wanted."""
    what = "The table" if is_table(source) else f"The table {str(source)!r}"
    own = [] if spec is None else [spec.lower()]
    ids, labels, scores, p_values, confidences, unknown, words = read_columns(
        source,
        [
            (*PATH_COLUMNS, "id"),
            ("label",),
            (*own, "score"),
            (*(f"p_value {name}" for name in own), "p_value"),
            ("confidence",),
            (*(f"is_ood {name}" for name in own), "is_ood"),
            (*(f"verdict {name}" for name in own), "verdict"),
        ],
    )
    for name, column in (("path", ids), ("label", labels), ("score", scores)):
        if column is None:
            raise InputError(
                f"{what} has no column {name!r}. Verdicts come in a table such as `deltaenergy score --out` writes."
            )
    assert ids is not None and labels is not None and scores is not None
    count = len(ids)
    csv = not is_table(source) and Path(source).suffix.lower() in {".csv", ".tsv"}
    return ScoredRows(
        [_text(value, row, "path", what, csv) for row, value in enumerate(ids, start=1)],
        [_text(value, row, "label", what, csv) for row, value in enumerate(labels, start=1)],
        _numbers(scores, "score", what, count),
        _numbers(p_values, "p_value", what, count),
        _numbers(confidences, "confidence", what, count),
        _truths(unknown, words, what, count),
    )


def read_predictions(source: Any) -> Predictions:
    """Verdicts from a table, as `Predictions.to_table`, `to_pandas`, `to_polars` and `score --out` make it."""
    rows = read_rows(source)
    if None in rows.is_ood:
        raise InputError(
            f"Row {rows.is_ood.index(None) + 1} of the table has no verdict (is_ood). Score the images with a detector."
        )
    return Predictions(
        [
            Verdict(
                rows.ids[i],
                rows.labels[i],
                float(confidence),
                float(score),
                None if np.isnan(p) else float(p),
                bool(rows.is_ood[i]),
            )
            for i, (confidence, score, p) in enumerate(zip(rows.confidences, rows.scores, rows.p_values))
        ],
        [],
    )


def check_own(rows: ScoredRows, detector: Detector) -> None:
    """Raise `InputError` where p-values in the table are not those that this detector gives the scores beside them.

    Without p-values nothing says whose the scores are, and the table is refused as well.
    """
    untold = np.flatnonzero(np.isnan(rows.p_values))
    if len(untold):
        raise InputError(
            f"The table has no p-value for {rows.ids[untold[0]]}, so that nothing says whether this detector made it: "
            "write it with `deltaenergy score --detector`."
        )
    wrong = np.flatnonzero(np.abs(detector.p_values(rows.scores) - rows.p_values) > _SAME_P)
    if len(wrong):
        raise InputError(
            f"The verdicts of the table are not this detector's: {rows.ids[wrong[0]]} has p {rows.p_values[wrong[0]]:g}"
            f" there, where the detector gives {detector.p_values(rows.scores[wrong[:1]])[0]:g} for that score."
        )


def _text(value: Any, row: int, name: str, what: str, csv: bool) -> str:
    text = optional_text(value)
    if text is None:
        raise InputError(f"{what} has no {name} in row {row}.")
    # In CSV files an apostrophe keeps spreadsheets from taking a name for a formula.
    return text[1:] if csv and text.startswith("'") and text.lstrip("'")[:1] in {"=", "+", "-", "@"} else text


def _numbers(values: Sequence[Any] | None, name: str, what: str, count: int) -> Floats:
    if values is None:
        return np.full(count, math.nan)
    found = np.full(count, math.nan)
    for row, value in enumerate(values):
        if optional_text(value) is None:
            continue
        try:
            found[row] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"{what} has {value!r} as {name} in row {row + 1}, which is no number.") from None
    return found


def _truths(values: Sequence[Any] | None, words: Sequence[Any] | None, what: str, count: int) -> list[bool | None]:
    known: dict[str, bool | None] = {"true": True, "false": False, "1": True, "0": False}
    known |= {NONE_OF_THESE: True, KNOWN: False, "": None}
    found = []
    for row, value in enumerate(values or words or [None] * count):
        text = (optional_text(value) or "").lower()
        if text not in known:
            raise InputError(f"{what} has {value!r} as is_ood in row {row + 1}, which is neither true nor false.")
        found.append(known[text])
    return found
