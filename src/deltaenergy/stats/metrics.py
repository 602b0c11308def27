"""Metrics of out-of-distribution detection: AUROC, AUPR-in, AUPR-out, FPR at a rate (both conventions).

Scores are larger for more in-distribution (ID) images; an image is kept when its score reaches the threshold.
All ranking metrics are functions of how often each distinct score occurs in each group, so one sort serves them all,
and bootstrap resamples only change the counts (`ranking.py`). `RankedScores` holds the sorted scores.

    AUROC        P(id > ood) + ½ P(id = ood)
    AUPR-in      Σ_t (recall_t − recall_{t−1}) · precision_t over falling thresholds, ID images positive
    AUPR-out     the same over rising thresholds, OOD images positive
    fpr95        share of OOD kept when at least 95% of ID is kept (MCM, LoCoOp, NegLabel, CSP, ΔEnergy)
    fpr95_ood    share of ID rejected when at least 95% of OOD is rejected (OpenOOD, pytorch-ood)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deltaenergy.core.text import counted
from deltaenergy.errors import InputError
from deltaenergy.stats.ranking import Counts, Ranked, Ranks, draw, weighted_sums
from deltaenergy.stats.ranking import images_for_rate as images_for_rate

Array = npt.NDArray[np.float64]

# Resamples are drawn in blocks of about this many entries: a block's arrays stay in the processor's cache, and are too
# small for the allocator to return them to the system each time.
BLOCK_ENTRIES = 20_000
# Maximum images per group: counts and ranks have 32 bits.
MOST_IMAGES = 2**31 - 1


class Estimate(NamedTuple):
    """A measured value and its confidence interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        return f"{100 * self.value:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f})"


class RocCurve(NamedTuple):
    """Share of OOD kept and share of ID kept at each threshold, from (0, 0) to (1, 1)."""

    ood_kept: Array
    id_kept: Array


class RankedScores:
    """ID and OOD scores, sorted once. Takes 12 bytes per image: its score, and its rank in the other group."""

    def __init__(self, id_scores: Any, ood_scores: Any, *, ordered: bool = False) -> None:
        """With `ordered`, resamples have images in the order of the scores; else by falling score."""
        groups = {"id_scores": id_scores, "ood_scores": ood_scores}
        self._ranks = Ranks(*(Ranked(check_scores(scores, name), ordered=ordered) for name, scores in groups.items()))

    @property
    def levels(self) -> Array:
        """The distinct scores, falling."""
        return np.union1d(self._ranks.id.levels, self._ranks.ood.levels)[::-1]

    @property
    def n_id(self) -> int:
        return self._ranks.id.images

    @property
    def n_ood(self) -> int:
        return self._ranks.ood.images

    def auroc(self) -> float:
        """P(id > ood) + ½ P(id = ood)."""
        return float(self._ranks.unresampled().auroc()[0])

    def aupr_in(self) -> float:
        """Average precision with ID images positive."""
        return float(self._ranks.unresampled().aupr_in()[0])

    def aupr_out(self) -> float:
        """Average precision with OOD images positive, ranked by falling −score."""
        return float(self._ranks.unresampled().aupr_out()[0])

    def fpr(self, rate: float = 0.95) -> float:
        """Share of OOD kept at the largest threshold that keeps at least `rate` of ID."""
        return float(self._ranks.unresampled().fpr(rate)[0])

    def fpr_ood(self, rate: float = 0.95) -> float:
        """Share of ID rejected at the smallest threshold that rejects at least `rate` of OOD."""
        return float(self._ranks.unresampled().fpr_ood(rate)[0])

    def threshold(self, rate: float = 0.95) -> float:
        """The largest observed score at which at least `rate` of ID is kept."""
        first = np.searchsorted(self._ranks.unresampled().id_above[0, 1:], images_for_rate(rate, self.n_id))
        return float(self._ranks.id.levels[first])

    def roc_curve(self) -> RocCurve:
        """The curve at every distinct score; points on a straight line are dropped, which changes no area."""
        levels = self.levels
        rise, run = (group.counts_at(levels) for group in (self._ranks.id, self._ranks.ood))
        x = np.concatenate([[0.0], run.cumsum() / self.n_ood])
        y = np.concatenate([[0.0], rise.cumsum() / self.n_id])
        rise, run = rise.astype(float), run.astype(float)
        turns = rise[:-1] * run[1:] != rise[1:] * run[:-1]
        corner = np.concatenate([[True], turns, [True]])
        return RocCurve(x[corner], y[corner])

    def metrics(self, rate: float = 0.95) -> dict[str, float]:
        """Every ranking metric by name; the two FPR names carry the rate, as in `fpr95` and `fpr95_ood`."""
        return {name: float(value[0]) for name, value in self._ranks.unresampled().metrics(rate).items()}

    def estimates(
        self, rate: float = 0.95, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
    ) -> dict[str, Estimate]:
        """Every ranking metric with its bootstrap percentile interval.

        ID and OOD images are resampled separately (both set sizes are fixed by the test, not random). An interval is
        [v, v] if no resample differs, as with perfectly separated groups; it then shows no uncertainty.
        """
        if resamples < 1:
            raise InputError(f"resamples must be at least 1, got {resamples!r}.")
        if not 0 < confidence < 1:
            raise InputError(f"confidence must be between 0 and 1, got {confidence!r}.")
        drawn = [
            self._ranks.resampled(ids, oods).metrics(rate)
            for ids, oods in _resamples(self.n_id, self.n_ood, resamples, seed)
        ]
        return {
            name: _estimate(value, [block[name] for block in drawn], confidence)
            for name, value in self.metrics(rate).items()
        }


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """P(id > ood) + ½ P(id = ood)."""
    return RankedScores(id_scores, ood_scores).auroc()


def fpr(id_scores: Any, ood_scores: Any, rate: float = 0.95) -> float:
    """Share of OOD kept when at least `rate` of ID is kept: `fpr95`."""
    return RankedScores(id_scores, ood_scores).fpr(rate)


def paired_differences(
    first: tuple[Any, Any],
    second: tuple[Any, Any],
    rate: float = 0.95,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Every ranking metric of `second` minus that of `first`, with its paired bootstrap percentile interval.

    Each is a pair (ID scores, OOD scores) of the same images in the same order: every resample uses the same images for
    both, so images that are hard for both do not widen the interval.
    """
    one, other = (RankedScores(*scores, ordered=True) for scores in (first, second))
    if (one.n_id, one.n_ood) != (other.n_id, other.n_ood):
        raise InputError(
            f"paired_differences compares scores of the same images, got {one.n_id} and {one.n_ood} against "
            f"{other.n_id} and {other.n_ood}."
        )
    drawn: dict[str, list[Array]] = {}
    for ids, oods in _resamples(one.n_id, one.n_ood, resamples, seed):
        before, after = (scores._ranks.resampled(ids, oods).metrics(rate) for scores in (one, other))
        for name in before:
            drawn.setdefault(name, []).append(after[name] - before[name])
    start, end = one.metrics(rate), other.metrics(rate)
    return {name: _estimate(end[name] - start[name], blocks, confidence) for name, blocks in drawn.items()}


def paired_mean_difference(
    first: Any, second: Any, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """The mean of `second` minus that of `first`, one number (or answer) per image, with its paired interval."""
    change = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if change.ndim != 1 or not len(change):
        raise InputError(f"a paired difference needs one number per image, got shape {change.shape}.")
    rng = np.random.default_rng(seed)
    means = [
        weighted_sums(draw(len(change), rows, rng), change) / len(change) for rows in _blocks(len(change), resamples)
    ]
    return _estimate(float(change.mean()), means, confidence)


def proportion_estimate(successes: int, total: int, *, confidence: float = 0.95) -> Estimate:
    """The share `successes / total` with its Wilson score interval (Wilson, JASA 1927)."""
    if total < 1 or not 0 <= successes <= total:
        raise InputError(f"a proportion needs 0 ≤ successes ≤ total and total ≥ 1, got {successes} of {total}.")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence!r}.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def check_scores(scores: Any, name: str) -> Array:
    """Scores as a float64 vector; empty groups and NaN are errors that name them. Infinities rank as they should."""
    array = _as_array(scores)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be real numbers, got {array.dtype}.")
    array = array.astype(np.float64, copy=False)
    if array.ndim != 1:
        raise InputError(f"{name} must have one number per image, got shape {array.shape}.")
    if not len(array):
        raise InputError(f"{name} is empty: a metric needs at least one image of each group.")
    if len(array) > MOST_IMAGES:
        raise InputError(f"{name} has {len(array)} images; the limit per group is {MOST_IMAGES}.")
    bad = np.flatnonzero(np.isnan(array))
    if len(bad):
        raise InputError(f"{name} is NaN for {counted(len(bad), 'image')}, first at index {bad[0]}.")
    return array


def _resamples(n_id: int, n_ood: int, resamples: int, seed: int) -> Iterator[tuple[Counts, Counts]]:
    """Resamples of both groups, in blocks. Each has its own generator, so the draws do not depend on the block size."""
    id_rng, ood_rng = np.random.default_rng(seed).spawn(2)
    for rows in _blocks(n_id + n_ood, resamples):
        yield draw(n_id, rows, id_rng), draw(n_ood, rows, ood_rng)


def _blocks(images: int, resamples: int) -> Iterator[int]:
    """How many resamples to draw at once."""
    rows = max(1, BLOCK_ENTRIES // images)
    for start in range(0, resamples, rows):
        yield min(rows, resamples - start)


def _estimate(value: float, drawn: Sequence[Array], confidence: float) -> Estimate:
    """A value with the percentile interval of its resamples."""
    low, high = np.quantile(np.concatenate(drawn), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high))


def _as_array(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of a list, an array, or a tensor on any device and of any precision."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)
    return np.asarray(values)
