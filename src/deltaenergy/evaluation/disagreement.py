"""On which images two scores disagree most: far up by the one, far down by the other.

Scores have units of their own, so that values say nothing beside each other; places in the order do:

    r(x) = (average rank of x among the n images − ½) / n,   disagreement(x) = r_first(x) − r_second(x)

r lies between 0 and 1, whatever the score, and equal scores have equal r. A positive disagreement: the first score
takes the image for known rather than the second does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from deltaenergy.errors import InputError
from deltaenergy.stats.metrics import check_scores

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.evaluation.results import EvaluatedSet, Evaluation


@dataclass(frozen=True)
class Disagreement:
    """One image: its row, its place between 0 (least known) and 1 by either score, and the difference."""

    row: int
    first: float
    second: float

    @property
    def difference(self) -> float:
        """Above 0 where the first score takes the image for known rather than the second does."""
        return self.first - self.second


def average_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from 1 to n, smallest first; equal values have the mean of their ranks."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[position.reshape(-1)], dtype=np.float64)


def places(scores: Any) -> npt.NDArray[np.float64]:
    """The place r of each image, by the formula above."""
    values = check_scores(scores, "scores")
    return (average_ranks(values) - 0.5) / len(values)


def rank_correlation(first: Any, second: Any) -> float:
    """Spearman's: 1 where two scores order images alike, 0 where one order says nothing of the other."""
    a, b = _two(first, second)
    if not (a.std() and b.std()):
        return 1.0 if a.std() == b.std() else 0.0
    return float(np.corrcoef(a, b)[0, 1])


def disagreements(first: Any, second: Any, count: int = 8) -> list[Disagreement]:
    """The `count` images on which two scores disagree most, largest difference first; of equal ones the first."""
    a, b = _two(first, second)
    order = np.argsort(-np.abs(a - b), kind="stable")[: max(0, count)]
    return [Disagreement(int(row), float(a[row]), float(b[row])) for row in order]


def least_alike(values: Mapping[str, Any], among: Sequence[str] | None = None) -> tuple[str, str]:
    """The two scores whose orders of the images are least alike; if `among` is given, one of them is from there."""
    pairs = [pair for pair in combinations(values, 2) if among is None or set(pair) & set(among)]
    if not pairs:
        raise InputError(f"A disagreement needs two scores, got {len(values)}.")
    return min(pairs, key=lambda pair: rank_correlation(values[pair[0]], values[pair[1]]))


class PooledRows(Sequence[tuple["EvaluatedSet", int]]):
    """Some images of several sets, one after the other: the set of each, and its row there."""

    def __init__(self, sets: Sequence[EvaluatedSet], rows: npt.NDArray[np.int64]) -> None:
        """`rows` count through all sets."""
        self._sets, self._rows = sets, rows
        self._ends = np.cumsum([len(image_set) for image_set in sets])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> tuple[EvaluatedSet, int]: ...
    @overload
    def __getitem__(self, index: slice) -> PooledRows: ...
    def __getitem__(self, index: int | slice) -> tuple[EvaluatedSet, int] | PooledRows:
        if isinstance(index, slice):
            return PooledRows(self._sets, self._rows[index])
        row = int(self._rows[index])
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._sets[number], row - (int(self._ends[number - 1]) if number else 0)


def pooled_scores(evaluation: Evaluation) -> tuple[PooledRows, dict[str, npt.NDArray[np.float64]]]:
    """Every image of an evaluation by set and row, and all scores in that order.

    Images without a number by some score are left out, since they have no place in its order.
    """
    sets = evaluation.sets
    values = {spec: np.concatenate([image_set.scored.values[spec] for image_set in sets]) for spec in evaluation.scores}
    complete = ~np.any([np.isnan(scores) for scores in values.values()], axis=0)
    return PooledRows(sets, np.flatnonzero(complete)), {spec: scores[complete] for spec, scores in values.items()}


@dataclass(frozen=True)
class ScoreDisagreement:
    """Two scores, how alike they order the images, and the images on which they differ most."""

    first: str
    second: str
    correlation: float
    images: list[Disagreement]

    def to_dict(self, image_of: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """As JSON values; `image_of` names the image of a row."""
        images = [{**image_of(image.row), "by_first": image.first, "by_second": image.second} for image in self.images]
        return {"first": self.first, "second": self.second, "correlation": self.correlation, "images": images}


def disagreement_with(first: str, values: Mapping[str, Any], count: int = 8) -> ScoreDisagreement:
    """The score `first` beside the one of `values` whose order of the images is least like its own."""
    second = next(spec for spec in least_alike(values, [first]) if spec != first)
    images = [image for image in disagreements(values[first], values[second], count) if image.difference]
    return ScoreDisagreement(first, second, rank_correlation(values[first], values[second]), images)


def disagreement_record(evaluation: Evaluation, count: int = 8) -> dict[str, Any] | None:
    """The primary score beside the one least like it, as JSON values; None where a single score was evaluated."""
    where, values = pooled_scores(evaluation)
    if len(values) < 2 or not where:
        return None

    def image_of(row: int) -> dict[str, Any]:
        image_set, own_row = where[row]
        return {"set": image_set.name, "image": image_set.scored.items[own_row].id}

    return disagreement_with(evaluation.primary, values, count).to_dict(image_of)


def _two(first: Any, second: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    a, b = places(first), places(second)
    if len(a) != len(b):
        raise InputError(f"Two scores of the same images are compared, got {len(a)} and {len(b)} values.")
    return a, b
