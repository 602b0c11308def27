"""Read verdicts from tables: files of `score --out` (CSV, JSONL, Parquet), pandas, polars and Arrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.data.formats.table import PATH_COLUMNS, TABLE_EXTENSIONS, is_table, optional_text, read_columns
from deltaenergy.detector.names import NamesRule
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.detector.detector import Detector

# p-values are fractions with the number of calibration images; text has all their digits.
_SAME_P = 1e-9


def holds_verdicts(source: Any) -> bool:
    """Whether this is a table with labels and scores, not only a list of images."""
    if not is_table(source):
        try:
            path = Path(source)
        except TypeError:
            return False
        if path.suffix.lower() not in TABLE_EXTENSIONS or not path.is_file():
            return False
    label, score = read_columns(source, [("label",), ("score",)])
    return label is not None and score is not None


def read_verdicts(source: Any) -> Verdicts:
    """The verdicts of a table; a number that it does not have is NaN."""
    what = "The table" if is_table(source) else f"The table {str(source)!r}"
    columns = [(*PATH_COLUMNS, "id"), ("label",), ("score",), ("score_name",), ("p_value",), ("confidence",)]
    paths, labels, scores, names, p_values, confidences, unknown, words = read_columns(
        source, [*columns, ("is_ood",), ("verdict",)]
    )
    for name, column in (("path", paths), ("label", labels), ("score", scores)):
        if column is None:
            raise InputError(f"{what} has no column {name!r}. Use a table that `deltaenergy score` wrote.")
    assert paths is not None and labels is not None and scores is not None
    count = len(paths)
    csv = not is_table(source) and Path(source).suffix.lower() in {".csv", ".tsv"}
    texts = [_text(value, row, "label", what, csv) for row, value in enumerate(labels, start=1)]
    classes = list(dict.fromkeys(texts))
    positions = {label: position for position, label in enumerate(classes)}
    specs = {optional_text(name) for name in names or []} - {None}
    if len(specs) > 1:
        raise InputError(f"{what} has verdicts of several scores ({', '.join(sorted(map(str, specs)))}): read one.")
    return Verdicts(
        [_text(value, row, "path", what, csv) for row, value in enumerate(paths, start=1)],
        classes,
        np.array([positions[label] for label in texts], np.int64).reshape(-1, 1),
        _numbers(confidences, "confidence", what, count).reshape(-1, 1),
        str(specs.pop()) if specs else "",
        _numbers(scores, "score", what, count),
        _numbers(p_values, "p_value", what, count),
        _truths(unknown, words, what),
    )


def check_own(verdicts: Verdicts, detector: Detector) -> None:
    """Raise `InputError` if the table's p-values are not this detector's for its scores.

    A table without p-values is also refused.
    """
    if isinstance(detector.calibration, NamesRule):  # which gives no p-values
        if verdicts.score_name != detector.score.spec:
            raise InputError(
                f"The table has scores of {verdicts.score_name!r}, and the detector {detector.score.spec!r}."
            )
        return
    p_values, scores = verdicts.p_values, verdicts.scores
    missing = np.flatnonzero(np.isnan(p_values))
    if len(missing):
        raise InputError(
            f"The table has no p-value for {verdicts.paths[missing[0]]}, so nothing shows that this detector made it: "
            "write it with `deltaenergy score` and this detector."
        )
    wrong = np.flatnonzero(np.abs(detector.p_values(scores) - p_values) > _SAME_P)
    if len(wrong):
        raise InputError(
            f"The verdicts of the table are not this detector's: {verdicts.paths[wrong[0]]} has "
            f"p {p_values[wrong[0]]:g}, and the detector gives {detector.p_values(scores[wrong[:1]])[0]:g}."
        )


def _text(value: Any, row: int, name: str, what: str, csv: bool) -> str:
    text = optional_text(value)
    if text is None:
        raise InputError(f"{what} has no {name} in row {row}.")
    return from_cell(text) if csv else text


def from_cell(cell: str) -> str:
    """A name from a cell of a CSV file, where an apostrophe keeps spreadsheets from reading it as a formula.

    >>> from_cell("'=1+1.png")
    '=1+1.png'
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'")[:1] in {"=", "+", "-", "@"} else cell


def _numbers(values: Sequence[Any] | None, name: str, what: str, count: int) -> npt.NDArray[np.float64]:
    numbers = np.full(count, math.nan)
    for row, value in enumerate(values or ()):
        if optional_text(value) is None:
            continue
        try:
            numbers[row] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"{what} has {value!r} as {name} in row {row + 1}, which is not a number.") from None
    return numbers


def _truths(values: Sequence[Any] | None, words: Sequence[Any] | None, what: str) -> npt.NDArray[np.bool_] | None:
    """`is_ood`, or from the column `verdict`; None if the table has neither."""
    known: dict[str, bool | None] = {"true": True, "false": False, "1": True, "0": False}
    known |= {NONE_OF_THESE: True, KNOWN: False, "": None}
    truths = []
    for row, value in enumerate(values or words or []):
        text = (optional_text(value) or "").lower()
        if text not in known:
            raise InputError(f"{what} has {value!r} as is_ood in row {row + 1}, which is neither true nor false.")
        truths.append(known[text])
    if not any(truth is not None for truth in truths):
        return None
    if None in truths:
        raise InputError(f"{what} has no verdict (is_ood) in row {truths.index(None) + 1}, and has one in others.")
    return np.array(truths, np.bool_)
