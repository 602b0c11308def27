"""The rate bet: are more images called none of these than the calibration allows?

Of n calibration scores k lie below the threshold. The share of known images below it then has the law
Beta(k + 1, n − k) (order statistics), or is bounded by it (ties; a threshold that was fixed beforehand: Clopper and
Pearson, Biometrika 1934). So it is at most q, the 1 − δ quantile
(`thresholds.upper_share`), but for a probability of δ. Against "at most q" one
bets on every image: with X_s = 1 if image s is flagged, and a stake λ in [0, 1/q),

    E_t(λ) = ∏ (1 + λ(X_s − q)),      E_t = the mean of E_t(λ) over λ in [0, 1/q)

If at most the share q of images is flagged, E_t is a non-negative supermartingale from 1, and ever reaches 1/α with a
probability of at most α (Ville 1939). With λ = (w − q) / (q(1 − q)) the mean is, for f flagged of t images,

    E_t = ∫_q^1 (w/q)^f ((1 − w)/(1 − q))^(t − f) dw / (1 − q)

so that the two counts are all there is to remember. Bets that begin later (restarts.py) have stakes of a grid.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

# λq of the bets that begin later: from small rises of the rate to nearly every image flagged.
STAKES = np.geomspace(0.01, 0.8, 16)
# Terms of a series that falls are added until they are this small beside the first.
_NEGLIGIBLE = 1e-18
_CHUNK = 256


def count_below(ascending: npt.NDArray[np.float64], threshold: float) -> int:
    """k, the number of calibration scores below the threshold; of several equal to it, all but one count as below."""
    below = int(np.searchsorted(ascending, threshold, side="left"))
    return max(below, int(np.searchsorted(ascending, threshold, side="right")) - 1)


def log_rate_evidence(flagged: int, images: int, bound: float) -> float:
    """The logarithm of E_t for q = `bound`. It falls with every image that is not flagged."""
    f, m, q = flagged, images - flagged, bound
    if q >= 1:  # nothing can be more than all
        return 0.0
    if f <= q * (images + 1):
        # By parts, again and again: E = Σ_j ((1 − q)/q)^j · f!/(f − j)! · m!/(m + j + 1)!, whose terms fall.
        return math.log(_falling_sum((1 - q) / q, f, m + 2)) - math.log(m + 1)
    # E = B(f + 1, m + 1) · P(Binomial(t + 1, q) ≤ f) / (q^f (1 − q)^(m + 1)), from the small other tail.
    beta = math.lgamma(f + 1) + math.lgamma(m + 1) - math.lgamma(images + 2)
    peak = -math.log(f + 1) - beta + (f + 1) * math.log(q) + m * math.log1p(-q)  # P(Binomial = f + 1)
    tail = math.exp(peak) * _falling_sum(q / (1 - q), m, f + 2)
    return beta - f * math.log(q) - (m + 1) * math.log1p(-q) + math.log1p(-tail)


def log_rate_bets(flagged: npt.NDArray[np.float64], bound: float) -> npt.NDArray[np.float64]:
    """log(1 + λ(X − q)) for each image, flagged (1) or not (0), and each of `STAKES`."""
    won, lost = np.log1p(STAKES * (1 - bound) / bound), np.log1p(-STAKES)
    return np.where(flagged[:, None] > 0, won, lost)


def _falling_sum(ratio: float, numerator: int, denominator: int) -> float:
    """1 + a_1 + a_1 a_2 + …, with a_i = ratio · (numerator − i + 1) / (denominator + i − 1), all below 1."""
    total, last, done = 1.0, 1.0, 0
    while done < numerator and last > _NEGLIGIBLE * total:
        i = np.arange(done, min(done + _CHUNK, numerator), dtype=np.float64)
        terms = last * np.cumprod(ratio * (numerator - i) / (denominator + i))
        total += float(terms.sum())
        last, done = float(terms[-1]), done + len(i)
    return total
