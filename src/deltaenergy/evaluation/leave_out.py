"""Leave classes out: some classes are removed from the class list, and their images serve as unknowns.

A score that learns from known images is cross-fitted (`deltaenergy.scoring.CrossFitted`): otherwise one that memorises
images (knn, mahalanobis) would be tested on those.

Intervals resample classes with all their images, because results must generalise over classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scoring import KnownImages, cross_fit, score_inputs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def folds(classes: int, parts: int, seed: int) -> list[Ints]:
    """The positions 0 … classes − 1, split at random into parts of nearly equal size, at most one part per class."""
    shuffled = np.random.default_rng(seed).permutation(classes)
    return [np.sort(part) for part in np.array_split(shuffled, min(parts, classes))]


def score_both(scorer: Scorer, known: ScoreInputs, member: Ints, unknown: ScoreInputs) -> tuple[Floats, Floats]:
    """The scores of known images (classes `member`) and of unknown images; cross-fitted if the score learns."""
    fitted = [scorer] if scorer.fitted else cross_fit([scorer], KnownImages(known, member.tolist()))
    of_known = score_inputs(fitted, known, known=True)[scorer.spec]
    return of_known, score_inputs(fitted, unknown)[scorer.spec]


def wins_by_class(
    known_values: Floats, known_class: Ints, unknown_values: Floats, unknown_class: Ints, classes: int
) -> Floats:
    """wins[k, u]: over pairs of a known image of class k and an unknown image of class u, how often the first scores
    higher (ties ½). Any weighting of classes is a weighted sum of this matrix, so resampling does not touch the images
    again.
    """
    present, column = np.unique(unknown_class, return_inverse=True)
    levels = np.unique(np.concatenate([known_values, unknown_values]))
    counts = np.zeros((len(levels), len(present)))
    np.add.at(counts, (np.searchsorted(levels, unknown_values), column), 1.0)
    below = counts.cumsum(axis=0) - counts / 2
    wins = np.zeros((classes, classes))
    by_known = np.zeros((classes, len(present)))
    np.add.at(by_known, known_class, below[np.searchsorted(levels, known_values)])
    wins[:, present] = by_known
    return wins


def resampled_auroc(wins: Floats, known_class: Ints, unknown_class: Ints, resampled: Floats) -> Floats:
    """AUROC of each resample of classes; NaN if it has no known or no unknown class."""
    known_count, unknown_count = (np.bincount(member, minlength=len(wins)) for member in (known_class, unknown_class))
    known, unknown = np.flatnonzero(known_count), np.flatnonzero(unknown_count)
    known_weight, unknown_weight = resampled[:, known], resampled[:, unknown]
    pairs = (known_weight @ known_count[known]) * (unknown_weight @ unknown_count[unknown])
    won = ((known_weight @ wins[np.ix_(known, unknown)]) * unknown_weight).sum(axis=1)
    return np.asarray(np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def resample_classes(parts: Sequence[Ints], resamples: int, seed: int) -> Floats:
    """How often each class is in each bootstrap resample (resamples, classes).

    A resample whose classes are all of one part is drawn again.
    """
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples!r}.")
    classes = sum(map(len, parts))
    part_of = np.empty(classes, dtype=np.int64)
    for number, part in enumerate(parts):
        part_of[part] = number
    rng = np.random.default_rng([seed, 1])
    drawn = np.zeros((resamples, classes), dtype=np.int64)
    again = np.arange(resamples)
    while len(again):
        drawn[again] = rng.multinomial(classes, np.full(classes, 1 / classes), size=len(again))
        by_part = np.stack([drawn[:, part_of == number].any(axis=1) for number in range(len(parts))])
        again = np.flatnonzero(by_part.sum(axis=0) < 2)
    return drawn.astype(np.float64)
