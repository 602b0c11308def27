"""What a detector says: one verdict per image, in input order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError
from deltaenergy.showing import Shown
from deltaenergy.verdicts import KNOWN, NONE_OF_THESE, verdict_word

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the detector says of one image.

    Attributes:
        id: the image's path, or its position in the input.
        label: the most similar class; meaningful when the image is in-distribution.
        confidence: softmax probability of that class at the model's own temperature.
        score: larger = more in-distribution.
        p_value: share of calibration images with a score at most this one (conformal; see `Detector.calibrate`).
        is_ood: whether the score is below the threshold by more than rounding (see `Detector.slack`), or not a
            number: then nothing speaks for the image.
    """

    id: str
    label: str
    confidence: float
    score: float
    p_value: float
    is_ood: bool

    @property
    def verdict(self) -> str:
        """*known* or *none of these*."""
        return verdict_word(self.is_ood)


class Predictions(Shown, Sequence[Verdict]):
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

    def _facts(self) -> dict[str, object]:
        unknown = sum(verdict.is_ood for verdict in self)
        facts: dict[str, object] = {"images": len(self), KNOWN: len(self) - unknown, NONE_OF_THESE: unknown}
        if self.unreadable:
            facts["unreadable"] = len(self.unreadable)
        return facts

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
        from deltaenergy.plotting import score_histogram

        groups = {
            name: np.array([verdict.score for verdict in self if verdict.is_ood is unknown], np.float64)
            for name, unknown in ((KNOWN, False), (NONE_OF_THESE, True))
        }
        return score_histogram(groups, None, "score", ax)

    def to_table(self) -> pa.Table:
        """One row per verdict, as a pyarrow table (`.to_pandas()` makes a data frame)."""
        import pyarrow as pa

        columns = list(Verdict.__dataclass_fields__)
        return pa.table({name: [getattr(verdict, name) for verdict in self] for name in columns})
