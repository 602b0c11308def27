"""Bets that begin at every image: a change is found soon, however long it was quiet before.

Evidence that is gathered from the first image on falls while nothing happens, and has to climb back from there. So only
half of the stake is bet so (rate.py, evidence.py). The other half is dealt out over all images to begin at: the share

    w_s = g(s − 1) − g(s),      g(t) = (1 + t)^(−a)

waits until image s comes, and is bet from there on. Σ w_s = 1, and the share g(t) waits after t images. With the factor
L_i(λ) by which image i multiplies a bet of kind λ (a stake, an exponent), and the mean over kinds,

    R_t = g(t) + the mean over λ of Σ_{s ≤ t} w_s ∏_{i = s..t} L_i(λ),      N_t = (E_t + R_t) / 2

**Why false alarms stay bounded.** The fortune that began at s is 1 before, and multiplied by L_i(λ) ≥ 0 afterwards. If
nothing has changed, L_i(λ) has a mean of at most 1 given all images before, so that each of these fortunes is a
non-negative supermartingale from 1. The weights are fixed beforehand and sum to 1, and a mean of such is such: so is
N_t. It ever reaches 1/α with a probability of at most α (Ville 1939). Nothing is chosen by what was seen.

**In bounded room.** All that is bet on λ has the same factor, whenever it began: the sum is one number for each λ,

    A_t = A_{t−1} L_t + w_{t+1},      A_0 = w_1,      R_t = the mean over λ of A_t(λ) + g(t + 1)

(what is to begin with the next image is counted as bet already, which changes no sum). That is the sum of Shiryaev
and Roberts, with weights that make it a fair game for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# a: the smaller, the less a late start costs, and the more an early one. log(1/w_s) is 12 at s = 5,000, and 18 at a
# million.
DECAY = 0.2
_ROWS = 4096


def log_weight(start: int) -> float:
    """The logarithm of w_s, without the loss of digits of a difference."""
    return -DECAY * math.log(start) + math.log(-math.expm1(-DECAY * math.log1p(1 / start)))


class Restarts:
    """The half of a test's stake that is dealt out over all starts.

    Attributes:
        logs: the logarithms of A_t, by kind of bet.
        images: t.
    """

    def __init__(self, kinds: int, log_bets: Callable[[Floats], Floats]) -> None:
        """`log_bets` gives log L for each observation and kind, of shape (N, kinds)."""
        self._log_bets = log_bets
        self.logs: Floats = np.full(kinds, log_weight(1))
        self.images = 0

    def add(self, observed: Floats) -> Floats:
        """Bet on observations in turn; the logarithm of R_t after each of them."""
        found = [np.zeros(0)]
        for first in range(0, len(observed), _ROWS):
            rows = self._log_bets(observed[first : first + _ROWS])
            before = self.images
            for i, factors in enumerate(rows):
                self.images += 1
                rows[i] = self.logs = np.logaddexp(self.logs + factors, log_weight(self.images + 1))
            found.append(_log_evidence(rows, before + np.arange(1, len(rows) + 1)))
        return np.concatenate(found)

    @property
    def log_evidence(self) -> float:
        """The logarithm of R_t."""
        return float(_log_evidence(self.logs[None], np.array([self.images]))[0])


def _log_evidence(logs: Floats, images: npt.NDArray[np.int64]) -> Floats:
    top = logs.max(axis=1, keepdims=True)
    bet = top + np.log(np.exp(logs - top).mean(axis=1, keepdims=True))
    found: Floats = np.logaddexp(bet[:, 0], -DECAY * np.log1p(images + 1))
    return found


def log_halves(first: float, restarts: float) -> float:
    """The logarithm of N_t from those of E_t and R_t."""
    return float(np.logaddexp(first, restarts)) - math.log(2)
