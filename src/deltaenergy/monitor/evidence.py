"""The conformal martingale: do scores still fall among those before them as at random? For small shifts.

The reference grows: m is the number of calibration scores and of all images so far. The smoothed p-value

    p_t = (#below + U) / (m + 1)

with U uniform on (0, 1], and a share U of those that tie with the image, is uniform and independent of all before if
the images are exchangeable with the calibration images (Vovk, Gammerman and Shafer 2005). One bets that it is small:

    M_t = the mean over ε of ∏ ε p_s^(ε − 1)

is then a martingale from 1, and ever reaches 1/α with a probability of at most α (Ville 1939).

Remembering every score would take ever more room. The calibration scores cut the line into cells instead, and images
in one cell tie. A cell with weight a (the calibration scores that end in it; of n there are n + 1 places) and c images
so far gets the next one with the probability (a + c) / (m + 1), whatever the law of the scores, as spacings are uniform
on the simplex: an urn, whose p-values are exactly uniform. Equal scores are put in order by lot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

# More cells than this tell nothing more, and take room.
MOST_CELLS = 1000
# The exponents that M_t is the mean over: 0.01, 0.03, …, 0.99.
EXPONENTS = (np.arange(50) + 0.5) / 50
_CALIBRATION_LOTS, _IMAGE_LOTS = 0, 1
_ROWS = 4096


class Cells:
    """Places between calibration scores, and how many images have fallen into each.

    Attributes:
        weights: of n + 1 places between calibration scores, how many belong to each cell.
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
        """The p-value of each image in turn; every one then belongs to the reference. NaN is below all."""
        number = int(self.counts.sum())
        # Four numbers belong to each image, by its number: images may come in batches of any size.
        lots = np.random.Generator(np.random.Philox(key=[self._seed, _IMAGE_LOTS], counter=number)).random(
            (len(scores), 4)
        )
        found = np.empty(len(scores))
        total = int(self.weights.sum()) + number  # m + 1
        for i, cell in enumerate(self._cells(np.where(np.isnan(scores), -np.inf, scores), lots[:, 0])):
            mass = self.weights + self.counts
            found[i] = (mass[:cell].sum() + (1 - lots[i, 1]) * mass[cell]) / (total + i)
            self.counts[cell] += 1
        return found

    def _cells(self, scores: Floats, lots: Floats) -> Ints:
        first, last = (np.searchsorted(self._scores, scores, side=side) for side in ("left", "right"))
        for i in np.flatnonzero(last > first):
            first[i] += np.searchsorted(self._lots[first[i] : last[i]], lots[i])
        return np.asarray(first, dtype=np.int64)


def log_shift_evidence(images: npt.ArrayLike, log_p: npt.ArrayLike) -> Floats:
    """The logarithm of M_t after t `images` whose p-values' logarithms sum to `log_p`; for arrays, of each pair."""
    t, total = np.atleast_1d(np.asarray(images, np.float64)), np.atleast_1d(np.asarray(log_p, np.float64))
    found = np.empty(len(t))
    for start in range(0, len(t), _ROWS):
        rows = slice(start, start + _ROWS)
        logs = t[rows, None] * np.log(EXPONENTS) + total[rows, None] * (EXPONENTS - 1)
        top = logs.max(axis=1, keepdims=True)
        found[rows] = (top + np.log(np.exp(logs - top).mean(axis=1, keepdims=True)))[:, 0]
    return found


def log_shift_bets(log_p: Floats) -> Floats:
    """log(ε p^(ε − 1)) for each image and each of `EXPONENTS`: bets that begin later (restarts.py)."""
    return np.log(EXPONENTS) + log_p[:, None] * (EXPONENTS - 1)
