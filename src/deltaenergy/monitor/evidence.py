"""Evidence that images have changed: two bets, and later starts of each.

**The rate bet: are more images rejected than the calibration allows?** Of n calibration scores k are below the
threshold. The share of known images below it then has the law Beta(k + 1, n − k) (order statistics), or is bounded by
it (ties; a threshold that was fixed beforehand: Clopper and Pearson, Biometrika 1934). So it is at most q, the 1 − δ
quantile (`thresholds.upper_share`), except with probability δ. Against "at most q" one bets on every image: with X_s =
1 if image s is rejected, and a stake λ in [0, 1/q),

    E_t(λ) = ∏ (1 + λ(X_s − q)),      E_t = the mean of E_t(λ) over λ in [0, 1/q)

If at most the share q of images is rejected, E_t is a non-negative supermartingale from 1, and ever reaches 1/α with a
probability of at most α (Ville 1939). With λ = (w − q) / (q(1 − q)) the mean is, for f rejected of t images,

    E_t = ∫_q^1 (w/q)^f ((1 − w)/(1 − q))^(t − f) dw / (1 − q)

so only the two counts must be stored.

**The conformal martingale: do scores still rank among earlier scores as at random?** It finds small shifts. The
reference grows: m is the number of calibration scores and of all images so far. The smoothed p-value

    p_t = (#below + U) / (m + 1)

with U uniform on (0, 1], and a share U of those that tie with the image, is uniform and independent of all before if
the images are exchangeable with the calibration images (Vovk, Gammerman and Shafer 2005). One bets that it is small:

    M_t = the mean over ε of ∏ ε p_s^(ε − 1)

is then a martingale from 1, and ever reaches 1/α with a probability of at most α. Remembering every score would take
ever more room. The calibration scores cut the line into cells instead, and images in one cell tie. A cell with weight a
(the calibration scores that end in it; of n there are n + 1 places) and c images so far gets the next one with the
probability (a + c) / (m + 1), whatever the law of the scores, as spacings are uniform on the simplex: an urn, whose
p-values are exactly uniform. Equal scores are put in random order.

**Bets that start later: a change is found soon, however long it was quiet before.** Evidence gathered from the first
image on falls while nothing happens, and has to climb back from there. So only half of the stake is bet so. The other
half is divided among all images to start at: the share

    w_s = g(s − 1) − g(s),      g(t) = (1 + t)^(−a)

waits until image s comes, and is bet from there on. Σ w_s = 1, and the share g(t) waits after t images. With the factor
L_i(λ) by which image i multiplies a bet of kind λ (a stake of a grid, an exponent), and the mean over kinds,

    R_t = g(t) + the mean over λ of Σ_{s ≤ t} w_s ∏_{i = s..t} L_i(λ),      N_t = (E_t + R_t) / 2

*Why false alarms stay bounded.* The fortune that started at s is 1 before, and multiplied by L_i(λ) ≥ 0 afterwards. If
nothing has changed, L_i(λ) has a mean of at most 1 given all images before, so each of these fortunes is a non-negative
supermartingale from 1. The weights are fixed beforehand and sum to 1, and a mean of such is such: so is N_t. It ever
reaches 1/α with a probability of at most α. Nothing is chosen from the data.

*In bounded memory.* All bets on λ have the same factor, whenever they started: the sum is one number for each λ,

    A_t = A_{t−1} L_t + w_{t+1},      A_0 = w_1,      R_t = the mean over λ of A_t(λ) + g(t + 1)

(what starts with the next image already counts as bet, which changes no sum). That is the sum of Shiryaev and Roberts,
with weights that make it a fair game forever.

**When it changed.** Of all starts and kinds of bet, the one with the largest fortune ∏_{i = s..t} L_i(λ) is the most
likely: up to the factor of no change, that product is the likelihood of a change at s. For each λ the best start moves
to the next image whenever the fortune is at most 1, as any later start is then as good (CUSUM; Page, Biometrika 1954).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# λq of the rate bets that start later: from small rises of the rate to nearly every image rejected.
STAKES = np.geomspace(0.01, 0.8, 16)
# The exponents ε that M_t is the mean over: 0.01, 0.03, …, 0.99.
EXPONENTS = (np.arange(50) + 0.5) / 50
# a: the smaller, the less a late start costs, and the more an early one. log(1/w_s) is 12 at s = 5,000, and 18 at a
# million.
DECAY = 0.2
# More cells than this add nothing and take memory.
MOST_CELLS = 1000
_CALIBRATION_LOTS, _IMAGE_LOTS = 0, 1
# Terms of a decreasing series are added until they are this small relative to the first.
_NEGLIGIBLE = 1e-18
_CHUNK, _ROWS = 256, 4096


def count_below(ascending: Floats, threshold: float) -> int:
    """k, the number of calibration scores below the threshold; of several ties, all but one count as below."""
    below = int(np.searchsorted(ascending, threshold, side="left"))
    return max(below, int(np.searchsorted(ascending, threshold, side="right")) - 1)


def log_rate_evidence(flagged: int, images: int, bound: float) -> float:
    """The logarithm of E_t for q = `bound`. It falls with every image that is not rejected."""
    f, m, q = flagged, images - flagged, bound
    if q >= 1:  # more than all is impossible
        return 0.0
    if f <= q * (images + 1):
        # By repeated integration by parts: E = Σ_j ((1 − q)/q)^j · f!/(f − j)! · m!/(m + j + 1)!, with decreasing
        # terms.
        return math.log(_falling_sum((1 - q) / q, f, m + 2)) - math.log(m + 1)
    # E = B(f + 1, m + 1) · P(Binomial(t + 1, q) ≤ f) / (q^f (1 − q)^(m + 1)), from the small other tail.
    beta = math.lgamma(f + 1) + math.lgamma(m + 1) - math.lgamma(images + 2)
    peak = -math.log(f + 1) - beta + (f + 1) * math.log(q) + m * math.log1p(-q)  # P(Binomial = f + 1)
    tail = math.exp(peak) * _falling_sum(q / (1 - q), m, f + 2)
    return beta - f * math.log(q) - (m + 1) * math.log1p(-q) + math.log1p(-tail)


def _falling_sum(ratio: float, numerator: int, denominator: int) -> float:
    """1 + a_1 + a_1 a_2 + …, with a_i = ratio · (numerator − i + 1) / (denominator + i − 1), all below 1."""
    total, last, done = 1.0, 1.0, 0
    while done < numerator and last > _NEGLIGIBLE * total:
        i = np.arange(done, min(done + _CHUNK, numerator), dtype=np.float64)
        terms = last * np.cumprod(ratio * (numerator - i) / (denominator + i))
        total += float(terms.sum())
        last, done = float(terms[-1]), done + len(i)
    return total


def log_rate_bets(flagged: Floats, bound: float) -> Floats:
    """log(1 + λ(X − q)) for each image, rejected (1) or not (0), and each of `STAKES`."""
    won, lost = np.log1p(STAKES * (1 - bound) / bound), np.log1p(-STAKES)
    return np.where(flagged[:, None] > 0, won, lost)


class ScoreCells:
    """Intervals between calibration scores, and how many images fell into each.

    Attributes:
        weights: of the n + 1 intervals between calibration scores, how many belong to each cell.
        counts: images by cell.
    """

    def __init__(self, ascending: Floats, seed: int) -> None:
        lots = np.random.Generator(np.random.Philox(key=[seed, _CALIBRATION_LOTS])).random(len(ascending))
        order = np.lexsort((lots, ascending))
        places = len(ascending) + 1
        cells = min(places, MOST_CELLS)
        ends = np.arange(1, cells) * places // cells  # ranks, counted from 1
        self._scores, self._lots = ascending[order][ends - 1], lots[order][ends - 1]
        self.weights: Ints = np.diff(np.concatenate([[0], ends, [places]]))
        self.counts: Ints = np.zeros(cells, dtype=np.int64)
        self._seed = seed

    def p_values(self, scores: Floats) -> Floats:
        """The p-value of each image in turn; each image then joins the reference. NaN is below all."""
        number = int(self.counts.sum())
        # Four random numbers per image, by its number, so batches may have any size.
        lots = np.random.Generator(np.random.Philox(key=[self._seed, _IMAGE_LOTS], counter=number)).random(
            (len(scores), 4)
        )
        p_values = np.empty(len(scores))
        total = int(self.weights.sum()) + number  # m + 1
        for i, cell in enumerate(self._cells(np.where(np.isnan(scores), -np.inf, scores), lots[:, 0])):
            mass = self.weights + self.counts
            p_values[i] = (mass[:cell].sum() + (1 - lots[i, 1]) * mass[cell]) / (total + i)
            self.counts[cell] += 1
        return p_values

    def _cells(self, scores: Floats, lots: Floats) -> Ints:
        first, last = (np.searchsorted(self._scores, scores, side=side) for side in ("left", "right"))
        for i in np.flatnonzero(last > first):
            first[i] += np.searchsorted(self._lots[first[i] : last[i]], lots[i])
        return np.asarray(first, dtype=np.int64)


def log_shift_evidence(images: npt.ArrayLike, log_p: npt.ArrayLike) -> Floats:
    """The logarithm of M_t after t `images` whose p-values' logarithms sum to `log_p`; for arrays, of each pair."""
    t, total = np.atleast_1d(np.asarray(images, np.float64)), np.atleast_1d(np.asarray(log_p, np.float64))
    evidence = np.empty(len(t))
    for start in range(0, len(t), _ROWS):
        rows = slice(start, start + _ROWS)
        evidence[rows] = _log_mean(t[rows, None] * np.log(EXPONENTS) + total[rows, None] * (EXPONENTS - 1))
    return evidence


def log_shift_bets(log_p: Floats) -> Floats:
    """log(ε p^(ε − 1)) for each image and each of `EXPONENTS`."""
    return np.log(EXPONENTS) + log_p[:, None] * (EXPONENTS - 1)


def log_weight(start: int) -> float:
    """The logarithm of w_s, without cancellation."""
    return -DECAY * math.log(start) + math.log(-math.expm1(-DECAY * math.log1p(1 / start)))


class Restarts:
    """The half of a test's stake that is divided among all starts, and which of these is the most likely change.

    Attributes:
        logs: the logarithms of A_t, by kind of bet.
        best: the logarithm of the largest fortune of one start, by kind of bet.
        starts: how many images came before that start.
        images: t.
    """

    def __init__(self, kinds: int, log_bets: Callable[[Floats], Floats]) -> None:
        """`log_bets` gives log L for each observation and kind, of shape (N, kinds)."""
        self._log_bets = log_bets
        self.logs: Floats = np.full(kinds, log_weight(1))
        self.best: Floats = np.zeros(kinds)
        self.starts: Ints = np.zeros(kinds, dtype=np.int64)
        self.images = 0

    def add(self, observed: Floats) -> tuple[Floats, Ints]:
        """Bet on observations in turn; after each, the logarithm of R_t and the images before the likely change."""
        evidence, since = np.empty(len(observed)), np.empty(len(observed), dtype=np.int64)
        for first in range(0, len(observed), _ROWS):
            rows = self._log_bets(observed[first : first + _ROWS])
            before = self.images
            for i, factors in enumerate(rows):
                self.starts = np.where(self.best <= 0, self.images, self.starts)
                self.best = np.maximum(self.best, 0) + factors
                since[first + i] = self.starts[self.best.argmax()]
                self.images += 1
                rows[i] = self.logs = np.logaddexp(self.logs + factors, log_weight(self.images + 1))
            evidence[first : first + len(rows)] = _with_waiting(rows, before + np.arange(1, len(rows) + 1))
        return evidence, since

    @property
    def log_evidence(self) -> float:
        """The logarithm of R_t."""
        return float(_with_waiting(self.logs[None], np.array([self.images]))[0])


def _with_waiting(logs: Floats, images: Ints) -> Floats:
    """The logarithm of R_t from those of A_t, and the share g(t + 1) that waits."""
    return np.asarray(np.logaddexp(_log_mean(logs), -DECAY * np.log1p(images + 1)))


def _log_mean(logs: Floats) -> Floats:
    """The log-mean-exp of each row."""
    top = logs.max(axis=1, keepdims=True)
    return np.asarray((top + np.log(np.exp(logs - top).mean(axis=1, keepdims=True)))[:, 0])


def log_mean_of_two(first: float, restarts: float) -> float:
    """The logarithm of N_t from those of E_t and R_t."""
    return float(np.logaddexp(first, restarts)) - math.log(2)
