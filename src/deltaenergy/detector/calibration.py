"""The result of a calibration: scores of known images, and the thresholds and p-values from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deltaenergy.core.classes import class_indices, first_of_name
from deltaenergy.detector.guarantee import Guarantee
from deltaenergy.errors import InputError
from deltaenergy.scoring import Scored
from deltaenergy.stats.thresholds import check_confidence, check_keep, conformal_p_values, count_at_most, least_images

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

# This many calibration images next to the threshold are scored again one by one, and the slack is this many times the
# change, so rounding never decides.
SCORED_AGAIN, SLACK_OF_CHANGE, LARGEST_ROUNDING = 4, 8.0, 1e-3
# This many differences of scores (8 bytes each) are held at a time.
MARGINS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of n known images, and what follows for new images.

    A score that learns nothing from these images has one number per image, and an image is kept if at least k of the n
    scores are at most its score, that is, if it reaches the threshold s_(k). A cross-fitted score has one number per
    fold, and s_i is compared with the number of the fold that did not learn from image i (CV+: Barber et al., Annals of
    Statistics 2021; Vovk, Annals of Mathematics and Artificial Intelligence 2015). Then there is no single threshold.

    By class (Mondrian): an image classified as c is compared with G_c, the known images of c that are classified as c.
    A new image of class c that is classified as c is exchangeable with these, whatever the other classes are. So the
    guarantee holds within c, and P(p ≤ a | class c, classified as c) ≤ a. Nothing is guaranteed for images of other
    classes: to keep them too, the threshold would have to be as low as unknown images.

    Attributes:
        scores: of the known images, ascending; out of fold if the score was cross-fitted.
        guarantee: which share of new images is kept, and in which sense.
        slack: differences to a threshold up to this are rounding.
        folds: the fold of each score, if the score was cross-fitted.
        groups: position of the class whose G_c each score belongs to; −1 for classes without their own threshold.
    """

    scores: Floats
    guarantee: Guarantee
    slack: float = 0.0
    folds: Ints | None = None
    groups: Ints | None = None

    @cached_property
    def threshold(self) -> float | None:
        """s_(k) of all images; None if the score was cross-fitted."""
        return float(self.scores[self.rank - 1]) if self.folds is None else None

    @property
    def rank(self) -> int:
        """k; 1 if the images are too few for the guarantee."""
        return max(1, self.guarantee.rank)

    @cached_property
    def by_class(self) -> dict[int, Calibration]:
        """The calibration of each class with its own threshold, by position."""
        parts: dict[int, Calibration] = {}
        if self.groups is not None:
            for c in np.unique(self.groups[self.groups >= 0]).tolist():
                own = self.groups == c
                guarantee = replace(self.guarantee, images=int(own.sum()), own=(), pooled=())
                folds = None if self.folds is None else self.folds[own]
                parts[c] = Calibration(self.scores[own], guarantee, self.slack, folds)
        return parts

    def rejects(self, values: Floats, named: Ints | None = None) -> npt.NDArray[np.bool_]:
        """Which images are rejected: fewer than k of the scores are at most theirs, or their score is NaN.

        `values` has a column for each fold if the score was cross-fitted. `named` is the predicted class of each image,
        needed with thresholds by class.
        """
        result = count_at_most(self.scores, values + self.slack, self.folds) < self.rank
        for c, group in self.by_class.items():
            rows = _needed(named) == c
            result[rows] = group.rejects(values[rows])
        return result

    def p_values(self, values: Floats, named: Ints | None = None) -> Floats:
        """Conformal p-values; NaN if not valid.

        That is the case if the classifier, or a score that had one image, learned from these images; and, with
        thresholds by class, for images of a predicted class without its own threshold.
        """
        if self.guarantee.trained or self.guarantee.folds == 1:
            return np.full(len(values), np.nan)
        if self.groups is None:
            return conformal_p_values(self.scores, values, self.folds)
        result = np.full(len(values), np.nan)
        for c, group in self.by_class.items():
            rows = _needed(named) == c
            result[rows] = group.p_values(values[rows])
        return result

    def margins(self, values: Floats) -> Floats:
        """The margin of each image, below 0 if it is rejected: the k-th largest of f(x) − s_i, plus the slack.

        For a score that is not cross-fitted this is f(x) − s_(k). Not for thresholds by class.
        """
        most = max(1, MARGINS_AT_ONCE // len(self.scores))
        margins = [np.zeros(0)]
        for start in range(0, len(values), most):
            block = values[start : start + most]
            each = (block[:, None] if self.folds is None else block[:, self.folds]) - self.scores
            margins.append(np.partition(each, -self.rank, axis=1)[:, -self.rank] + self.slack)
        return np.concatenate(margins)


def _needed(named: Ints | None) -> Ints:
    if named is None:
        raise InputError("This detector has thresholds by class: pass the predicted class of each score as well.")
    return named


def class_groups(truth: Ints, named: Ints, keep: float, confidence: float | None) -> Ints:
    """`Calibration.groups` from the true and predicted class of each known image."""
    groups = np.where(truth == named, truth, -1)
    classes, counts = np.unique(groups, return_counts=True)
    return np.where(np.isin(groups, classes[counts >= least_images(keep, confidence)]), groups, -1)


def rows_next_to(values: Floats, threshold: float) -> Ints:
    """The rows of the scores that are just above a threshold."""
    above = np.flatnonzero(values >= threshold)
    return above[np.argsort(values[above], kind="stable")[:SCORED_AGAIN]]


def slack_of_changes(values: Floats, moved: Floats) -> float:
    """Several times the largest change by rounding; a change above a thousandth comes from the batch, not from
    rounding.
    """
    changes = np.abs(moved - values)
    by_rounding = changes[changes <= LARGEST_ROUNDING * np.maximum(1.0, np.abs(values))]
    return SLACK_OF_CHANGE * float(by_rounding.max(initial=0.0))


def check_calibration(keep: float, confidence: float | None, *, by_class: bool = False) -> None:
    """Raise `InputError` for invalid settings of `Detector.calibrate`, before any work."""
    check_keep(keep)
    check_confidence(confidence)
    if by_class and keep == 1:
        raise InputError("`by_class` needs `keep` below 1.")


def true_classes(scored: Scored, classes: Sequence[str]) -> Ints:
    """The class of each image, by its first position in the class list."""
    if scored.items and all(item.label is None for item in scored.items):
        raise InputError(
            "`by_class` needs the class of each image. Pass a folder with one subfolder per class, a table with a "
            "label column, or `labels` with rows of features."
        )
    positions = class_indices(scored.items, classes, "by_class")
    return np.array(first_of_name(classes), dtype=np.int64)[np.array(positions, dtype=np.int64)]


def check_numbers(scored: Scored, spec: str) -> None:
    """Raise `InputError` if an image's score is NaN."""
    bad = np.flatnonzero(np.isnan(scored.values[spec]))
    if len(bad):
        raise InputError(
            f"The score {spec} of the known image {scored.items[bad[0]].id} is not a number"
            f"{f', as those of {len(bad) - 1} more' if len(bad) > 1 else ''}, so no threshold can be set. Remove the "
            "image, or use another score."
        )
