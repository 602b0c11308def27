"""The images on which two scores disagree most: ranked high by one, low by the other.

Scores have different units, so ranks are compared:

    r(x) = (average rank of x among the n images − ½) / n,   disagreement(x) = r_first(x) − r_second(x)

r is between 0 and 1 for every score, and equal scores have equal r. If the disagreement is positive, the first score
finds the image more known than the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        """Above 0 if the first score finds the image more known than the second."""
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
    """Spearman's correlation: 1 if two scores rank images the same, 0 if the ranks are unrelated."""
    a, b = _two(first, second)
    if not (a.std() and b.std()):
        return 1.0 if a.std() == b.std() else 0.0
    return float(np.corrcoef(a, b)[0, 1])


def disagreements(first: Any, second: Any, count: int = 8) -> list[Disagreement]:
    """The `count` images on which two scores disagree most, largest difference first; on ties the first image."""
    a, b = _two(first, second)
    order = np.argsort(-np.abs(a - b), kind="stable")[: max(0, count)]
    return [Disagreement(int(row), float(a[row]), float(b[row])) for row in order]


def pooled_scores(
    evaluation: Evaluation,
) -> tuple[Callable[[int], tuple[EvaluatedSet, int]], dict[str, npt.NDArray[np.float64]]]:
    """The scores of all images of an evaluation; and what gives the set of a row of these, and its row there.

    Images with NaN by some score are skipped, because they have no rank.
    """
    sets = evaluation.sets
    values = {spec: np.concatenate([image_set.scored.values[spec] for image_set in sets]) for spec in evaluation.scores}
    complete = ~np.any([np.isnan(scores) for scores in values.values()], axis=0)
    rows, ends = np.flatnonzero(complete), np.cumsum([len(image_set) for image_set in sets])

    def place(row: int) -> tuple[EvaluatedSet, int]:
        number = int(np.searchsorted(ends, rows[row], side="right"))
        return sets[number], int(rows[row]) - (int(ends[number - 1]) if number else 0)

    return place, {spec: scores[complete] for spec, scores in values.items()}


@dataclass(frozen=True)
class ScoreDisagreement:
    """Two scores, their rank correlation, and the images on which they differ most."""

    first: str
    second: str
    correlation: float
    images: list[Disagreement]

    def to_dict(self, image_of: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """As JSON values; `image_of` names the image of a row."""
        images = [{**image_of(image.row), "by_first": image.first, "by_second": image.second} for image in self.images]
        return {"first": self.first, "second": self.second, "correlation": self.correlation, "images": images}


def disagreement_with(first: str, values: Mapping[str, Any], count: int = 8) -> ScoreDisagreement:
    """The score `first` and the score of `values` that ranks the images least like it."""
    others = [spec for spec in values if spec != first]
    second = min(others, key=lambda spec: rank_correlation(values[first], values[spec]))
    images = [image for image in disagreements(values[first], values[second], count) if image.difference]
    return ScoreDisagreement(first, second, rank_correlation(values[first], values[second]), images)


def disagreement_record(evaluation: Evaluation) -> dict[str, Any] | None:
    """The primary score and the score least like it, as JSON values; None with a single score."""
    place, values = pooled_scores(evaluation)
    if len(values) < 2 or not len(values[evaluation.primary]):
        return None

    def image_of(row: int) -> dict[str, Any]:
        image_set, own_row = place(row)
        return {"set": image_set.name, "image": image_set.scored.items[own_row].id}

    return disagreement_with(evaluation.primary, values).to_dict(image_of)


def _two(first: Any, second: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    a, b = places(first), places(second)
    if len(a) != len(b):
        raise InputError(f"Two scores of the same images are compared, got {len(a)} and {len(b)} values.")
    return a, b
