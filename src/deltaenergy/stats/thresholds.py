"""The mathematics of thresholds: what share of new images a rule keeps, conformal p-values, false discoveries.

All functions take plain numbers: scores of n known images in ascending order, s_(1) ≤ … ≤ s_(n), larger = more
in-distribution. An image is kept if its score is at least the threshold s_(k), that is, if at least k of the n scores
are at most its own. Which k gives which guarantee is `rank_of`.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING

import numpy as np

from deltaenergy.errors import InputError
from deltaenergy.stats.ranking import images_for_rate

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

# Several times the change measured between batch sizes, and far too small to matter otherwise.
SLACK_OF_RANGE, SLACK_OF_SIZE = 2e-5, 4e-6
# The confidence of the bound that is printed with the average guarantee.
CONFIDENCE = 0.9
# Sums of probabilities are this exact; 1 − 0.9 in floating point is not 0.1.
ROUNDING = 1e-9
# Halvings of the interval that contains a share: as far as float64 goes.
_HALVINGS = 80


def rank_of(images: int, keep: float, confidence: float | None) -> int:
    """The k of the threshold s_(k) that guarantees `keep`: on average, or with a confidence; 0 if no k does.

    On average: for a score exchangeable with the n, s_(k) keeps 1 − k / (n + 1) on average (ties only help), which is
    at least `keep` for k = ⌊(1 − keep)(n + 1)⌋ (Vovk et al. 2005).

    With a confidence: the share of new images that s_(k) keeps is C = P(S ≥ s_(k)). For a continuous score C has the
    law Beta(n − k + 1, k), so P(C ≥ keep) = P(Binomial(n, 1 − keep) ≥ k), which must be at least `confidence`: the
    one-sided tolerance limit of Wilks (Annals of Mathematical Statistics 1941). Ties only help. Let t* be the largest t
    with P(S ≥ t) ≥ keep. C < keep means s_(k) > t*: fewer than k of the n scores are at most t*. Each is with
    probability P(S ≤ t*) ≥ 1 − keep, so this is at most as likely as Binomial(n, 1 − keep) < k.
    """
    if not images or keep == 1:
        return 0
    if confidence is None:
        # (1 − 0.95) · 20 is 1.0000000000000009 in floating point, (1 − 0.9) · 10 is 0.9999999999999998.
        return min(images, math.floor((1 - keep) * (images + 1) + ROUNDING))
    below = np.cumsum(binomial(images, min(1 - keep, 1 - 2**-53)))  # P(Binomial ≤ k)
    return min(images, int(np.searchsorted(below, (1 - confidence) * (1 + ROUNDING), side="right")))


def least_images(keep: float, confidence: float | None) -> int:
    """The smallest n whose rank is at least 1. `keep` must be below 1.

    On average n / (n + 1) ≥ keep, so n = ⌈1 / (1 − keep)⌉ − 1; with a confidence 1 − keepⁿ ≥ confidence.
    """
    least = 1 / (1 - keep) - 1 if confidence is None else math.log(1 - confidence) / math.log(keep)
    return max(1, math.ceil(least * (1 - ROUNDING)))


def kept_at_least(images: int, rank: int, confidence: float = CONFIDENCE) -> float:
    """The share of new images that s_(k) keeps with this confidence: the 1 − confidence quantile of Beta(n − k + 1, k).

    P(C ≥ c) = P(Binomial(n, 1 − c) ≥ k): it is 1 − q, with q the root of P(Binomial(n, q) ≤ k − 1) = 1 − confidence.
    """
    return 1 - upper_share(rank - 1, images, 1 - confidence)


def upper_share(count: int, total: int, doubt: float) -> float:
    """The largest share q that `count` of `total` allows: P(Binomial(total, q) ≤ count) = `doubt`, rounded up.

    The one-sided limit of Clopper and Pearson (Biometrika 1934).
    """
    if count >= total:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if binomial(total, middle, count).sum() > doubt:
            low = middle
        else:
            high = middle
    return high


def binomial(total: int, chance: float, most: int | None = None) -> Floats:
    """P(Binomial(total, chance) = k) for k = 0 … `most` (total by default). `chance` must be above 0 and below 1."""
    k = np.arange(1, (total if most is None else most) + 1, dtype=np.float64)
    # The k-th term is log C(n, k) + k·log(chance) + (n − k)·log(1 − chance).
    odds = np.log((total - k + 1) / k) + math.log(chance) - math.log1p(-chance)
    return np.asarray(np.exp(total * math.log1p(-chance) + np.concatenate([[0.0], np.cumsum(odds)])))


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """P(Binomial(trials, chance) ≥ successes)."""
    if successes <= 0:
        return 1.0
    if not 0 < chance < 1:
        return float(chance >= 1)
    return min(1.0, float(binomial(trials, chance)[successes:].sum()))


def threshold_of(ascending: Floats, keep: float, confidence: float | None) -> float:
    """s_(k), with k from `rank_of`; the smallest score if the images are too few."""
    return float(ascending[max(1, rank_of(len(ascending), keep, confidence)) - 1])


def percent(share: float | None) -> str:
    """A share as text: 95%, 99.9%."""
    return "" if share is None else f"{100 * share:.6g}%"


def check_keep(keep: float) -> None:
    """Raise `InputError` unless `keep` is a share above zero."""
    if not _is_number(keep) or not 0 < keep <= 1:
        raise InputError(f"`keep` must be above 0 and at most 1, got {keep!r}.")


def check_confidence(confidence: float | None) -> None:
    """Raise `InputError` unless `confidence` is a probability between 0 and 1, both excluded, or None."""
    if confidence is not None and (not _is_number(confidence) or not 0 < confidence < 1):
        raise InputError(f"`confidence` must be above 0 and below 1 (by default: on average), got {confidence!r}.")


def check_fdr(fdr: float | None) -> None:
    """Raise `InputError` unless `fdr` is a share between 0 and 1, both excluded, or None."""
    if fdr is not None and (not _is_number(fdr) or not 0 < fdr < 1):
        raise InputError(f"`fdr` must be above 0 and below 1, such as 0.1, got {fdr!r}.")


def threshold_at(ascending: Floats, keep: float) -> float:
    """The largest observed score that at least ⌈keep·n⌉ of the n ascending scores reach: for metrics of these n."""
    return float(ascending[len(ascending) - images_for_rate(keep, len(ascending))])


def count_at_most(ascending: Floats, values: Floats, folds: Ints | None = None) -> Ints:
    """#{i: s_i ≤ f(x)} of each image x; 0 for NaN.

    With `folds`, the fold of each s_i, `values` has a column for each: #{i: s_i ≤ f_k(x), k the fold of i}.
    """
    if folds is not None:
        counts = [count_at_most(ascending[folds == k], values[:, k]) for k in range(values.shape[1])]
        return np.where(np.isnan(values).any(axis=1), 0, np.sum(counts, axis=0))
    return np.where(np.isnan(values), 0, np.searchsorted(ascending, values, side="right"))


def conformal_p_values(ascending: Floats, values: Floats, folds: Ints | None = None) -> Floats:
    """(1 + #{i: s_i ≤ s}) / (n + 1); a score of NaN gets the smallest, 1 / (n + 1).

    For a score exchangeable with the n, P(p ≤ a) ≤ a (Vovk et al. 2005; Bates et al., Annals of Statistics 2023).
    With `folds` (`count_at_most`) it is the cross-conformal p-value (Vovk, Annals of Mathematics and Artificial
    Intelligence 2015); proven is P(p ≤ a) ≤ 2a plus a term that falls with n (Barber et al., Annals of Statistics 2021,
    theorem 4), measured is about a.
    """
    return np.asarray((1.0 + count_at_most(ascending, values, folds)) / (len(ascending) + 1.0))


def benjamini_hochberg(p_values: npt.NDArray[np.float64], fdr: float) -> npt.NDArray[np.bool_]:
    """Which of m images to reject, so in expectation at most the share `fdr` of the rejected images is known.

    The k smallest p-values are rejected, k the largest with p_(k) ≤ fdr·k / m (Benjamini & Hochberg, JRSS B 1995).
    Conformal p-values share their calibration images and so depend on each other, but positively (PRDS), under which
    the bound holds (Bates et al., Annals of Statistics 2023, theorem 2).
    """
    check_fdr(fdr)
    count = len(p_values)
    ordered = np.sort(p_values)
    # p-values are fractions: 0.3·1/3 must not be below 1/10 by rounding.
    within = np.flatnonzero(ordered <= fdr * np.arange(1, count + 1) / max(1, count) * (1 + ROUNDING))
    return np.asarray(p_values <= ordered[within[-1]]) if len(within) else np.zeros(count, dtype=bool)


def slack_of(ascending: npt.NDArray[np.float64]) -> float:
    """How far a score may be below its threshold by rounding, from the range of the ID scores.

    An image tower rounds differently in a batch of another size, which changes scores by up to a few millionths of
    their range; an image that set the threshold must not be rejected for that.
    """
    if not len(ascending):
        return 0.0
    low, high = float(ascending[0]), float(ascending[-1])
    return SLACK_OF_RANGE * (high - low) + SLACK_OF_SIZE * max(abs(low), abs(high))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)
