"""Ranks of the scores of two groups in each other, and the ranking metrics of images or resamples.

With the distinct scores of each group falling, x_1 > x_2 > … of ID and y_1 > y_2 > … of OOD images, every metric is a
sum over one group of what is kept of the other at that score. If v_j images are drawn of score x_j, and w_i of y_i,

    A(x) = Σ v_j over x_j ≥ x,    B(x) = Σ w_i over y_i ≥ x,    A⁺ and B⁺ the same without those of score x
    AUROC       Σ_i w_i · (A(y_i) + A⁺(y_i)) / (2 |ID| |OOD|)
    AUPR-in     Σ_j v_j · A(x_j) / (A(x_j) + B(x_j)) / |ID|
    AUPR-out    Σ_i w_i · (|OOD| − B⁺(y_i)) / (|OOD| − B⁺(y_i) + |ID| − A⁺(y_i)) / |OOD|

How many scores of the other group are above each is computed once (`Ranks`); A and B are running sums, read in order.
So a resample needs constant time per image: memory is read in order, and nothing is sorted. Only to compare two scores
of the same images, one order must be turned into another (`ordered`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from deltaenergy.errors import InputError

Array = npt.NDArray[np.float64]
# How often each image is drawn, a row for each resample.
Counts = npt.NDArray[np.int32]

# Scores are processed in blocks of about this size, which does not change a sum.
PART = 2**13
# Images per piece. A power of two, so bits of a random number are a uniform draw; small enough for the counts to stay
# in the cache.
PIECE = 2**14
# Draws that one random number of 64 bits is enough for.
_IN_ONE = 4


class Ranked:
    """The scores of one group.

    Attributes:
        images: their number.
        levels: the distinct scores, falling.
    """

    def __init__(self, scores: Array, *, ordered: bool = False) -> None:
        """With `ordered`, resamples have images in the order of `scores`; else by falling score."""
        self.images = len(scores)
        self._order = np.argsort(scores)[::-1].astype(np.int32) if ordered else None
        rising = np.sort(scores)
        first = np.append(True, rising[1:] != rising[:-1])
        # Of the images by falling score, the last of each level; not needed if no two images share one.
        self._last: npt.NDArray[np.bool_] | None = None
        if not first.all():
            self._last = first[::-1]
            rising = rising[: _compress(rising[None], first)]
        # Falling, but rising in memory, for searching.
        self.levels: Array = rising[::-1]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many images there are of each level."""
        if self._last is None:
            return np.ones(self.images, np.int64)
        return np.diff(np.flatnonzero(self._last), prepend=-1)

    def counts_above(self, drawn: Counts) -> Counts:
        """How many images were drawn above each level, and finally in all; a row for each resample."""
        counts = np.zeros((len(drawn), self.images + 1), np.int32)
        np.cumsum(drawn if self._order is None else drawn[:, self._order], axis=1, dtype=np.int32, out=counts[:, 1:])
        if self._last is None:
            return counts
        _compress(counts[:, 1:], self._last)
        return counts[:, : len(self.levels) + 1]

    def counts_at(self, levels: Array) -> npt.NDArray[np.int64]:
        """How many images there are of each of these levels, which include all of the group's."""
        counts = np.zeros(len(levels), np.int64)
        counts[len(levels) - 1 - np.searchsorted(levels[::-1], self.levels)] = self.counts
        return counts


class Ranks:
    """Where the levels of each of two groups are in the other.

    Attributes:
        id, ood: the groups.
        above_ood: how many ID levels are above each OOD level.
        reach_id: how many OOD levels are at or above each ID level.
        tied: positions of the OOD levels that are also ID levels.
    """

    def __init__(self, id_group: Ranked, ood_group: Ranked) -> None:
        self.id, self.ood = id_group, ood_group
        self.above_ood = _above(id_group.levels, ood_group.levels, "right")
        self.reach_id = _above(ood_group.levels, id_group.levels, "left")
        ties = []
        for part in _parts(len(ood_group.levels)):
            # If it is an ID level, it is the one below those above it.
            next_id = np.minimum(self.above_ood[part], len(id_group.levels) - 1)
            ties.append(part.start + np.flatnonzero(id_group.levels[next_id] == ood_group.levels[part]))
        self.tied: npt.NDArray[np.int64] = np.concatenate(ties)

    def unresampled(self) -> Kept:
        """The images themselves, as a resample that draws each of them once."""
        each = (np.broadcast_to(np.int32(1), (1, group.images)) for group in (self.id, self.ood))
        return self.resampled(*each)

    def resampled(self, id_drawn: Counts, ood_drawn: Counts) -> Kept:
        """Counts of drawn images, a row for each resample, in the order of `Ranked`."""
        return Kept(self, self.id.counts_above(id_drawn), self.ood.counts_above(ood_drawn))


class Kept:
    """How much of each group is kept at every level, and the metrics from that; a row for each resample.

    `id_above` and `ood_above`: how many images were drawn above each level of the group, and finally in all.
    """

    def __init__(self, ranks: Ranks, id_above: Counts, ood_above: Counts) -> None:
        self.ranks, self.id_above, self.ood_above = ranks, id_above, ood_above

    def metrics(self, rate: float) -> dict[str, Array]:
        percent = f"{100 * rate:.10g}"
        auroc, aupr_out = self._over_ood()
        return {
            "auroc": auroc,
            "aupr_in": self.aupr_in(),
            "aupr_out": aupr_out,
            f"fpr{percent}": self.fpr(rate),
            f"fpr{percent}_ood": self.fpr_ood(rate),
        }

    def auroc(self) -> Array:
        """P(id > ood) + ½ P(id = ood)."""
        return self._over_ood()[0]

    def aupr_out(self) -> Array:
        """Average precision with OOD images positive."""
        return self._over_ood()[1]

    def aupr_in(self) -> Array:
        """Average precision with ID images positive."""
        total = np.zeros(len(self.id_above))
        for part in _parts(len(self.ranks.id.levels)):
            kept = self.id_above[:, part.start + 1 : part.stop + 1].astype(np.float64)
            counts = kept - self.id_above[:, part]
            every = kept + self.ood_above.take(self.ranks.reach_id[part], axis=1)
            kept /= np.maximum(every, 1, out=every)
            total += _products(counts, kept)
        return total / self.ranks.id.images

    def fpr(self, rate: float) -> Array:
        """Share of OOD kept at the first level, falling, that keeps enough of ID: one at which ID images were drawn."""
        needed = images_for_rate(rate, self.ranks.id.images)
        first = [int(np.searchsorted(row[1:], np.int32(needed))) for row in self.id_above]
        kept = self.ood_above[np.arange(len(first)), self.ranks.reach_id[first]]
        return np.asarray(kept / self.ranks.ood.images)

    def fpr_ood(self, rate: float) -> Array:
        """Share of ID rejected at the first level, rising, that rejects enough of OOD.

        It is the last OOD level, falling, that has no more OOD images above it than may be kept.
        """
        allowed = self.ranks.ood.images - images_for_rate(rate, self.ranks.ood.images)
        last = [int(np.searchsorted(row, np.int32(allowed), "right")) - 1 for row in self.ood_above]
        kept = self.id_above[np.arange(len(last)), self.ranks.above_ood[last]]
        return np.asarray((self.ranks.id.images - kept) / self.ranks.id.images)

    def _over_ood(self) -> tuple[Array, Array]:
        """AUROC and AUPR-out, in one pass."""
        n_id, n_ood = self.ranks.id.images, self.ranks.ood.images
        pairs, precise = np.zeros((2, len(self.ood_above)))
        for part in _parts(len(self.ranks.ood.levels)):
            ood_below = np.subtract(float(n_ood), self.ood_above[:, part])
            counts = ood_below - n_ood
            counts += self.ood_above[:, part.start + 1 : part.stop + 1]
            id_above = self.id_above.take(self.ranks.above_ood[part], axis=1).astype(np.float64)
            pairs += _products(counts, id_above)
            every = ood_below - id_above
            every += n_id
            ood_below /= np.maximum(every, 1, out=every)
            precise += _products(counts, ood_below)
        # Whole numbers below 2⁵³, so nothing is rounded: pairs count two halves, ties one.
        return (2 * pairs + self._ties()) / (2.0 * n_id * n_ood), precise / n_ood

    def _ties(self) -> Array:
        """Pairs of an ID and an OOD image of one score."""
        total = np.zeros(len(self.ood_above))
        for part in _parts(len(self.ranks.tied)):
            oods = self.ranks.tied[part]
            ids = self.ranks.above_ood[oods]
            ood_counts = (self.ood_above[:, oods + 1] - self.ood_above[:, oods]).astype(np.float64)
            total += _products(ood_counts, self.id_above[:, ids + 1] - self.id_above[:, ids])
        return total


def images_for_rate(rate: float, total: int) -> int:
    """How many of `total` images make up at least the share `rate`: ⌈rate·total⌉, at least one."""
    if not 0 < rate <= 1:
        raise InputError(f"rate must be above 0 and at most 1, got {rate!r}.")
    # Rounded first: 0.95 · 20 is 19.000000000000004 in floating point, and its ceiling would be 20.
    return max(1, math.ceil(round(rate * total, 9)))


def weighted_sums(counts: Counts, values: Array) -> Array:
    """Σ counts · values of each row."""
    total = np.zeros(len(counts))
    for part in _parts(len(values)):
        total += np.einsum("ij,j->i", counts[:, part].astype(np.float64), values[part])
    return total


def _parts(total: int) -> Iterator[slice]:
    """All indices, in parts of about equal size: a short part costs nearly as much as a long one."""
    count = max(1, round(total / PART))
    for number in range(count):
        yield slice(total * number // count, total * (number + 1) // count)


def _above(levels: Array, places: Array, side: Any) -> npt.NDArray[np.int32]:
    """How many of the falling `levels` are above each of the falling `places`; at or above if side is left."""
    counts = np.empty(len(places), np.int32)
    for part in _parts(len(places)):
        counts[part] = len(levels) - np.searchsorted(levels[::-1], places[part], side)
    return counts


def _compress(rows: npt.NDArray[Any], chosen: npt.NDArray[np.bool_]) -> int:
    """Move the chosen values of each row to its front, in place, and return their number."""
    end = 0
    for part in _parts(len(chosen)):
        chosen_values = rows[:, part].compress(chosen[part], axis=1)
        rows[:, end : end + chosen_values.shape[1]] = chosen_values
        end += chosen_values.shape[1]
    return end


def _products(weights: Array, values: npt.NDArray[Any]) -> Array:
    """Σ weights · values of each row."""
    return np.asarray(np.einsum("ij,ij->i", weights, values))


def draw(images: int, rows: int, rng: np.random.Generator) -> Counts:
    """`rows` bootstrap resamples of `images`. Drawing them one at a time or all at once gives the same result.

    A resample of n images draws n of them with replacement: the counts are Multinomial(n; 1/n, …, 1/n). Random access
    beyond the processor's cache is slow, so images are drawn piece by piece:

        (m_1, …, m_k) ~ Multinomial(n; n_1/n, …, n_k/n)      how many of the draws fall into each piece of n_p images
        the m_p draws of a piece are independent and uniform over its n_p images

    which is the same distribution, because draws are independent and uniform within a piece.
    """
    if images <= PIECE:
        drawn = rng.integers(images, size=(rows, images))
        drawn += np.arange(rows)[:, None] * images
        return np.bincount(drawn.ravel(), minlength=rows * images).astype(np.int32).reshape(rows, images)
    ends = np.append(np.arange(PIECE, images, PIECE), images)
    shares = np.diff(ends, prepend=0) / images
    counts = np.empty((rows, images), np.int32)
    for row in counts:
        for end, draws in zip(ends.tolist(), rng.multinomial(images, shares).tolist()):
            start = (end - 1) // PIECE * PIECE
            row[start:end] = _piece(end - start, draws, rng)
    return counts


def _piece(images: int, draws: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `draws` images of one piece."""
    if images < PIECE:  # the last one
        return np.bincount(rng.integers(images, size=draws), minlength=images)
    bits = rng.bit_generator.random_raw(-(-draws // _IN_ONE)).view(np.uint16)[:draws]
    return np.bincount(bits & np.uint16(PIECE - 1), minlength=PIECE)
