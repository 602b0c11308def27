"""What a detector says: one verdict per image, in input order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from deltaenergy.core.display import HasRepr
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.notebook import Shot, histogram_html, interleaved, pictures_html
from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE, verdict_word
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    import polars as pl
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the detector says of one image.

    Attributes:
        id: the image's path, or its position in the input.
        label: the most similar class; meaningful when the image is in-distribution.
        confidence: softmax probability of that class at the model's own temperature.
        score: larger = more in-distribution.
        p_value: share of calibration images with a score at most this one (conformal; see `Detector.calibrate`); None
            where no p-value is valid.
        is_ood: whether the score is below the threshold by more than rounding (see `Detector.slack`), or not a
            number: then nothing speaks for the image.
    """

    id: str
    label: str
    confidence: float
    score: float
    p_value: float | None
    is_ood: bool

    @property
    def verdict(self) -> str:
        """*known* or *none of these*."""
        return verdict_word(self.is_ood)


class Predictions(HasRepr, Sequence[Verdict]):
    """Verdicts in input order, and the images that could not be read.

    `fdr` is the false discovery rate where that, in place of a threshold, decided (`Detector.control`).
    """

    def __init__(self, verdicts: list[Verdict], unreadable: list[Unreadable], fdr: float | None = None) -> None:
        self._verdicts = verdicts
        self.unreadable = unreadable
        self.fdr = fdr

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        return self._verdicts[index]

    def __len__(self) -> int:
        return len(self._verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts)

    def _repr_fields(self) -> dict[str, object]:
        unknown = sum(verdict.is_ood for verdict in self)
        facts: dict[str, object] = {"images": len(self), KNOWN: len(self) - unknown, NONE_OF_THESE: unknown}
        if self.unreadable:
            facts["unreadable"] = len(self.unreadable)
        return facts

    def _repr_html_(self) -> str:
        """In a notebook: counts, a histogram of the scores by verdict, and a few pictures, unknown ones first."""
        shots: dict[bool, list[Shot]] = {True: [], False: []}
        for verdict in self:
            lines: tuple[str, ...] = (f"{verdict.label} {verdict.confidence:.0%}", f"score {verdict.score:.4g}")
            if verdict.is_ood:
                lines = (NONE_OF_THESE, f"most like {verdict.label}", lines[1])
            shots[verdict.is_ood].append(Shot(ImageItem(verdict.id, Path(verdict.id)), lines, not verdict.is_ood))
        return (
            super()._repr_html_()
            + histogram_html(self._by_verdict(), None)
            + pictures_html(interleaved(shots[True], shots[False]))
        )

    def _by_verdict(self) -> dict[str, npt.NDArray[np.float64]]:
        """The scores of known images, and of the others."""
        return {
            name: np.array([verdict.score for verdict in self if verdict.is_ood is unknown], np.float64)
            for name, unknown in ((KNOWN, False), (NONE_OF_THESE, True))
        }

    @classmethod
    def from_table(cls, table: Any) -> Predictions:
        """Verdicts from a table: a file that `score --out` wrote, or a pandas, polars or Arrow table in memory.

        It needs the columns `path` or `id`, `label`, `score` and `is_ood`; what it lacks of the others is NaN.
        """
        from deltaenergy.detector.verdict_tables import read_predictions

        return read_predictions(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's own interface, by which polars, duckdb, pandas and pyarrow take tables from each other."""
        return self.to_table().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.DataFrame:
        """One row per verdict, as a polars data frame, where polars is installed."""
        try:
            import polars as pl
        except ImportError:
            raise InputError("to_polars needs polars: pip install polars. to_table does without.") from None
        return pl.from_arrow(self.to_table())

    def to_fiftyone(self, folder: str | Path) -> None:
        """Write `labels.json` and `data.json` for FiftyOne; images stay where they are (`fiftyone_export`)."""
        from deltaenergy.detector.fiftyone import write_fiftyone

        names = Verdict.__dataclass_fields__
        rows = [{"path": verdict.id} | {name: getattr(verdict, name) for name in names} for verdict in self]
        written, left_out = write_fiftyone(folder, rows, [verdict.label for verdict in self])
        if left_out:
            warnings.warn(f"{left_out} of {written + left_out} images are no files, and were left out.", stacklevel=2)

    def to_pandas(self) -> pd.DataFrame:
        """One row per verdict, as a pandas data frame, where pandas is installed."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas. to_table does without.") from None
        columns = list(Verdict.__dataclass_fields__)
        return pd.DataFrame({name: [getattr(verdict, name) for verdict in self] for name in columns}, columns=columns)

    def plot(self, ax: Any = None) -> Any:
        """A histogram of the scores by verdict, on matplotlib's axes `ax` or new ones, which are returned."""
        from deltaenergy.core.plotting import score_histogram

        return score_histogram(self._by_verdict(), None, "score", ax)

    def to_table(self) -> pa.Table:
        """One row per verdict, as a pyarrow table (`.to_pandas()` makes a data frame)."""
        import pyarrow as pa

        columns = list(Verdict.__dataclass_fields__)
        return pa.table({name: [getattr(verdict, name) for verdict in self] for name in columns})
