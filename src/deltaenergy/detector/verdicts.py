"""Verdicts as one table, whole or as a stream: the same in Python, files, the service and on Ray."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from deltaenergy.core.text import HasRepr, from_cell
from deltaenergy.data.formats.table import PATH_COLUMNS, TABLE_EXTENSIONS, is_table, optional_text, read_columns
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.inline import Shot, interleaved, pictures_html
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE, Counts, Verdict, verdict_schema
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from deltaenergy.scoring import Scored


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts(HasRepr, Sequence[Verdict]):
    """Verdicts in input order, stored as columns, and the unreadable images.

    Attributes:
        paths: of the images.
        classes: the class names.
        top: positions of the closest classes (N, k), best first.
        top_confidence: their softmax probabilities (N, k).
        score_name: the score, with its parameters.
        scores: larger = more in-distribution.
        p_values: NaN if not valid.
        is_ood: None without a threshold.
        unreadable: the unreadable images, and why.
        fdr: the false discovery rate, if it replaced the threshold (`Detector.control`).
        items: the images, in a batch of a stream.
        more_like: closest word to each rejected image, if the score has words; or empty.
    """

    paths: Sequence[str]
    classes: Sequence[str]
    top: npt.NDArray[np.int64]
    top_confidence: npt.NDArray[np.float64]
    score_name: str
    scores: npt.NDArray[np.float64]
    p_values: npt.NDArray[np.float64]
    is_ood: npt.NDArray[np.bool_] | None
    unreadable: list[Unreadable] = field(default_factory=list)
    fdr: float | None = None
    items: Sequence[ImageItem] = ()
    more_like: Sequence[str | None] = ()

    @classmethod
    def of(
        cls,
        scored: Scored,
        classes: Sequence[str],
        score_name: str,
        is_ood: npt.NDArray[np.bool_] | None,
        top_k: int = 1,
    ) -> Verdicts:
        """Verdicts from the results of a score, without p-values; if there are none, `top_k` is their width."""
        width = scored.top.shape[1] if len(scored.top) else min(top_k, len(classes))
        return cls(
            [item.id for item in scored.items],
            classes,
            scored.top.reshape(-1, width),
            scored.top_confidence.astype(np.float64).reshape(-1, width),
            score_name,
            scored.values.get(score_name, np.zeros(0)),
            np.full(len(scored.top), np.nan),
            is_ood,
            scored.unreadable,
            items=scored.items,
        )

    @classmethod
    def concat(cls, parts: Iterable[Verdicts], *, keep_items: bool = False) -> Verdicts:
        """The verdicts of several batches; the images themselves only if they are to be kept."""
        found = list(parts)
        items = [item for part in found for item in part.items] if keep_items else []
        judged = [part for part in found if len(part)] or found[-1:]
        return replace(
            judged[0],
            paths=[path for part in judged for path in part.paths],
            top=np.concatenate([part.top for part in judged]),
            top_confidence=np.concatenate([part.top_confidence for part in judged]),
            scores=np.concatenate([part.scores for part in judged]),
            p_values=np.concatenate([part.p_values for part in judged]),
            is_ood=None
            if judged[0].is_ood is None
            else np.concatenate([part.is_ood for part in judged if part.is_ood is not None]),
            unreadable=[image for part in found for image in part.unreadable],
            items=items,
            more_like=[word for part in judged for word in part.more_like],
        )

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        labels = [self.classes[position] for position in self.top[index]]
        p_value, rejected = float(self.p_values[index]), None if self.is_ood is None else bool(self.is_ood[index])
        return Verdict(
            self.paths[index],
            labels[0],
            float(self.top_confidence[index, 0]),
            self.score_name,
            float(self.scores[index]),
            None if np.isnan(p_value) else p_value,
            rejected,
            tuple(zip(labels, self.top_confidence[index].tolist())),
            self.more_like[index] if rejected and self.more_like else None,
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[row] for row in range(len(self)))

    @property
    def labels(self) -> list[str]:
        """The closest class of each image."""
        return [self.classes[position] for position in self.top[:, 0]]

    @property
    def counts(self) -> Counts:
        """The number of images by verdict."""
        return Counts(len(self), None if self.is_ood is None else int(self.is_ood.sum()), len(self.unreadable))

    def rows(self) -> list[dict[str, Any]]:
        """The table, one dictionary per image."""
        return [verdict.to_dict() for verdict in self]

    def to_table(self) -> pa.Table:
        """The table as a pyarrow table; text that is not valid UTF-8 is escaped."""
        import pyarrow as pa

        schema = verdict_schema(self.top.shape[1])
        labels = np.array([_utf8(name) for name in self.classes], dtype=object)[self.top]
        none = np.zeros(len(self), bool) if self.is_ood is None else self.is_ood
        unjudged = np.full(len(self), self.is_ood is None)
        columns: dict[str, Any] = {
            "path": [_utf8(path) for path in self.paths],
            "label": labels[:, 0],
            "confidence": self.top_confidence[:, 0],
            "score_name": [self.score_name] * len(self),
            "score": self.scores,
            "p_value": pa.array(self.p_values, mask=np.isnan(self.p_values)),
            "is_ood": pa.array(none, mask=unjudged),
            "verdict": pa.array(np.where(none, NONE_OF_THESE, KNOWN).tolist(), "string", mask=unjudged),
            "answer": pa.array(np.where(none, NONE_OF_THESE, labels[:, 0]).tolist(), "string", mask=unjudged),
            "more_like": [
                _utf8(word) if word is not None and rejected else None
                for word, rejected in zip(self.more_like or [None] * len(self), none)
            ],
        }
        for rank in range(1, self.top.shape[1]):
            columns |= {f"label_{rank + 1}": labels[:, rank], f"confidence_{rank + 1}": self.top_confidence[:, rank]}
        return pa.table(columns, schema=schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's interface for polars, duckdb, pandas and pyarrow."""
        return self.to_table().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.DataFrame:
        """The table as a polars data frame; needs polars."""
        try:
            import polars as pl
        except ImportError:
            raise InputError("to_polars needs polars: pip install polars, or use to_table.") from None
        return pl.from_arrow(self.to_table())

    def to_pandas(self) -> pd.DataFrame:
        """The table as a pandas data frame; needs pandas."""
        try:
            import pandas as pd  # noqa: F401
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas, or use to_table.") from None
        return self.to_table().to_pandas()

    def to_fiftyone(self, folder: str | Path) -> None:
        """Write `labels.json` and `data.json` for FiftyOne; images are not copied (`detector.fiftyone`)."""
        from deltaenergy.detector.fiftyone import write_fiftyone

        written, skipped = write_fiftyone(folder, self.rows(), self.classes)
        if skipped:
            warnings.warn(f"{skipped} of {written + skipped} images are not files and were skipped.", stacklevel=2)

    @classmethod
    def from_table(cls, table: Any) -> Verdicts:
        """Verdicts from a table: a file that `score --out` wrote, or a pandas, polars or Arrow table in memory.

        It needs the columns `path` or `id`, `label` and `score`; a number that it does not have is NaN.
        """
        what = "The table" if is_table(table) else f"The table {str(table)!r}"
        columns = [(*PATH_COLUMNS, "id"), ("label",), ("score",), ("score_name",), ("p_value",), ("confidence",)]
        paths, labels, scores, names, p_values, confidences, unknown, words = read_columns(
            table, [*columns, ("is_ood",), ("verdict",)]
        )
        for name, column in (("path", paths), ("label", labels), ("score", scores)):
            if column is None:
                raise InputError(f"{what} has no column {name!r}. Use a table that `deltaenergy score` wrote.")
        assert paths is not None and labels is not None and scores is not None
        count = len(paths)
        csv = not is_table(table) and Path(table).suffix.lower() in {".csv", ".tsv"}
        texts = [_text(value, row, "label", what, csv) for row, value in enumerate(labels, start=1)]
        classes = list(dict.fromkeys(texts))
        positions = {label: position for position, label in enumerate(classes)}
        specs = {optional_text(name) for name in names or []} - {None}
        if len(specs) > 1:
            raise InputError(f"{what} has verdicts of several scores ({', '.join(sorted(map(str, specs)))}): read one.")
        return cls(
            [_text(value, row, "path", what, csv) for row, value in enumerate(paths, start=1)],
            classes,
            np.array([positions[label] for label in texts], np.int64).reshape(-1, 1),
            _numbers(confidences, "confidence", what, count).reshape(-1, 1),
            str(specs.pop()) if specs else "",
            _numbers(scores, "score", what, count),
            _numbers(p_values, "p_value", what, count),
            _truths(unknown, words, what),
        )

    def _repr_fields(self) -> dict[str, object]:
        counts = self.counts
        facts: dict[str, object] = {"images": counts.images}
        facts |= {name: count for name, count in counts.to_dict().items() if count is not None}
        if not counts.unreadable:
            del facts["unreadable"]
        return facts

    def _repr_html_(self) -> str:
        """In a notebook: counts and a few images, rejected images first."""
        shots: dict[bool, list[Shot]] = {True: [], False: []}
        for verdict in self:
            lines: tuple[str, ...] = (f"{verdict.label} {verdict.confidence:.0%}", f"score {verdict.score:.4g}")
            if verdict.is_ood:
                nearest = f"closest: {verdict.label}" if verdict.more_like is None else f"more like {verdict.more_like}"
                lines = (NONE_OF_THESE, nearest, lines[1])
            image = ImageItem(verdict.path, Path(verdict.path))
            shots[bool(verdict.is_ood)].append(Shot(image, lines, not verdict.is_ood))
        return super()._repr_html_() + pictures_html(interleaved(shots[True], shots[False]))

    def plot(self, ax: Any = None) -> Any:
        """Plot a histogram of the scores by verdict on matplotlib's axes `ax`, or new axes, and return them."""
        from deltaenergy.detector.inline import score_histogram

        groups = {"images": self.scores}
        if self.is_ood is not None:
            groups = {KNOWN: self.scores[~self.is_ood], NONE_OF_THESE: self.scores[self.is_ood]}
        return score_histogram(groups, None, "score", ax)


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


class VerdictStream(Iterator[Verdict]):
    """Verdicts as they are found, at most one batch ahead. Iterate over it, or over `batches()`, once."""

    def __init__(self, parts: Iterable[Verdicts]) -> None:
        self._unreadable: list[Unreadable] = []
        self._counted: Counter[str] = Counter()
        self._judged, self._exhausted = True, False
        self._parts = self._count(parts)
        self._verdicts = (verdict for part in self._parts for verdict in part)

    def __next__(self) -> Verdict:
        return next(self._verdicts)

    def batches(self) -> Iterator[Verdicts]:
        """The verdicts of each batch as a table."""
        return self._parts

    @property
    def unreadable(self) -> list[Unreadable]:
        """The images that have no verdict, and why; available after the stream has ended."""
        self._require_end("unreadable")
        return self._unreadable

    @property
    def counts(self) -> Counts:
        """The number of images by verdict; available after the stream has ended."""
        self._require_end("counts")
        rejected = self._counted["rejected"] if self._judged else None
        return Counts(self._counted["images"], rejected, len(self._unreadable))

    def _count(self, parts: Iterable[Verdicts]) -> Iterator[Verdicts]:
        for part in parts:
            self._unreadable += part.unreadable
            self._counted["images"] += len(part)
            if part.is_ood is None:
                self._judged = False
            else:
                self._counted["rejected"] += int(part.is_ood.sum())
            yield part
        self._exhausted = True

    def _require_end(self, name: str) -> None:
        if not self._exhausted:
            raise InputError(f"{name} is available after the stream has ended: read all of its verdicts first.")


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(value: Any, row: int, name: str, what: str, csv: bool) -> str:
    text = optional_text(value)
    if text is None:
        raise InputError(f"{what} has no {name} in row {row}.")
    return from_cell(text) if csv else text


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
