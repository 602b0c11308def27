"""Judge scores with some classes taken off the class list: AUROC, FPR95, and AUROC of resampled classes.

A score that learns from known images is cross-fitted (`deltaenergy.scoring.CrossFitted`): one that keeps what it saw
(knn, mahalanobis) would otherwise be tested on what it knows by heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scoring import cross_fit, deal_folds, score_inputs
from deltaenergy.stats.metrics import RankedScores

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """What scores look at, and the class (its position among those seen) that each image is of or was made from."""

    inputs: ScoreInputs
    member: Ints


@dataclass(frozen=True)
class Judged:
    """AUROC and FPR95 of each candidate, and its AUROC in each resample (candidates, resamples)."""

    auroc: Floats
    fpr95: Floats
    drawn: Floats

    @staticmethod
    def mean(folds: Sequence[Judged]) -> Judged:
        """Over folds. A resample that holds none of a fold's classes speaks for the other folds only.

        One that speaks for none (it holds no class that a far unknown was made from) is NaN.
        """
        auroc, fpr95 = (np.mean([getattr(fold, name) for fold in folds], axis=0) for name in ("auroc", "fpr95"))
        drawn = np.array([fold.drawn for fold in folds])
        there = (~np.isnan(drawn)).sum(axis=0)
        total = np.nansum(drawn, axis=0)
        return Judged(auroc, fpr95, np.divide(total, there, out=np.full(total.shape, np.nan), where=there > 0))


def judge(scorers: Sequence[Scorer], known: Images, unknown: Sequence[Images], resampled: Floats) -> list[Judged]:
    """How well each score tells the known images from each kind of unknown ones."""
    found: list[list[tuple[float, float, Floats]]] = [[] for _ in unknown]
    for scorer in scorers:
        fitted = scorer if scorer.fitted else cross_fit(scorer, known.inputs, deal_folds(known.member.tolist()))
        known_values = score_inputs([fitted], known.inputs, known=True)[scorer.spec]
        for kind, images in zip(found, unknown):
            values = score_inputs([fitted], images.inputs)[scorer.spec]
            ranked = RankedScores(known_values, values)
            wins = wins_by_class(known_values, known.member, values, images.member, resampled.shape[1])
            area = resampled_auroc(wins, known.member, images.member, resampled)
            kind.append((ranked.auroc(), ranked.fpr(), area))
    return [Judged(*(np.array(column) for column in zip(*kind))) for kind in found]


def wins_by_class(
    known_values: Floats, known_class: Ints, unknown_values: Floats, unknown_class: Ints, classes: int
) -> Floats:
    """wins[k, u]: over pairs of a known image of class k and an unknown one of class u, how often the first scores
    higher (ties ½). Any weighting of classes is a weighted sum of this matrix, so that resampling them costs no further
    look at the images.
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
    """AUROC of each resample of classes; NaN where it holds no known or no unknown image's class."""
    known_count, unknown_count = (np.bincount(member, minlength=len(wins)) for member in (known_class, unknown_class))
    known, unknown = np.flatnonzero(known_count), np.flatnonzero(unknown_count)
    known_weight, unknown_weight = resampled[:, known], resampled[:, unknown]
    pairs = (known_weight @ known_count[known]) * (unknown_weight @ unknown_count[unknown])
    won = ((known_weight @ wins[np.ix_(known, unknown)]) * unknown_weight).sum(axis=1)
    return np.asarray(np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def deal(classes: int, folds: int, seed: int) -> list[Ints]:
    """The positions 0 … classes − 1, dealt at random into folds of nearly equal size."""
    if classes < 2:
        raise InputError(f"choose needs images of at least two classes, and found {classes}.")
    if folds < 2:
        raise InputError(f"folds must be at least 2, got {folds!r}: with one fold no class would be kept.")
    shuffled = np.random.default_rng([seed, 0]).permutation(classes)
    return [np.sort(part) for part in np.array_split(shuffled, min(folds, classes))]


def resample_classes(parts: Sequence[Ints], resamples: int, seed: int) -> Floats:
    """How often each class is in each bootstrap resample (resamples, classes).

    A resample whose classes are all of one fold compares nothing with anything, and is drawn again.
    """
    if resamples < 1:
        raise InputError(f"resamples must be at least 1, got {resamples!r}.")
    classes = sum(map(len, parts))
    fold_of = np.empty(classes, dtype=np.int64)
    for number, part in enumerate(parts):
        fold_of[part] = number
    rng = np.random.default_rng([seed, 1])
    drawn = np.zeros((resamples, classes), dtype=np.int64)
    again = np.arange(resamples)
    while len(again):
        drawn[again] = rng.multinomial(classes, np.full(classes, 1 / classes), size=len(again))
        by_fold = np.stack([drawn[:, fold_of == number].any(axis=1) for number in range(len(parts))])
        again = np.flatnonzero(by_fold.sum(axis=0) < 2)
    return drawn.astype(np.float64)
