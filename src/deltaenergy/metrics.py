"""Metrics of out-of-distribution detection: AUROC, AUPR-in, AUPR-out, FPR at a rate (both conventions), accuracy.

Scores are larger for more in-distribution (ID) images; an image is kept when its score reaches the threshold.
All ranking metrics are functions of two histograms over the distinct scores, so that one sort serves them all, and
bootstrap resamples only re-weight the histograms. `RankedScores` holds them; the plain functions are one-liners on it.

    AUROC        P(id > ood) + ½ P(id = ood)
    AUPR-in      Σ_t (recall_t − recall_{t−1}) · precision_t over falling thresholds, ID images positive
    AUPR-out     the same over rising thresholds, OOD images positive
    fpr95        share of OOD kept when at least 95 % of ID is kept (MCM, LoCoOp, NegLabel, CSP, ΔEnergy)
    fpr95_ood    share of ID rejected when at least 95 % of OOD is rejected (OpenOOD, pytorch-ood)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deltaenergy.errors import InputError

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

# Resamples are drawn in blocks of about this many entries, so that a block's arrays stay in the processor's cache.
BLOCK_ENTRIES = 100_000


class Estimate(NamedTuple):
    """A measured value and its confidence interval."""

    value: float
    low: float
    high: float


class RocCurve(NamedTuple):
    """Share of OOD kept and share of ID kept at each threshold, from (0, 0) to (1, 1)."""

    ood_kept: Array
    id_kept: Array


class RankedScores:
    """ID and OOD scores, sorted once.

    Attributes:
        levels: the distinct scores, falling.
        id_counts, ood_counts: how many images of each group have that score.
    """

    def __init__(self, id_scores: Any, ood_scores: Any) -> None:
        in_dist = check_scores(id_scores, "id_scores")
        out_dist = check_scores(ood_scores, "ood_scores")
        rising = np.unique(np.concatenate([in_dist, out_dist]))
        self.levels: Array = rising[::-1]
        self.id_counts: Counts = _histogram(in_dist, rising)[::-1]
        self.ood_counts: Counts = _histogram(out_dist, rising)[::-1]
        self._kept = _Kept(self.id_counts, self.ood_counts)

    @property
    def n_id(self) -> int:
        """Number of ID images."""
        return int(self.id_counts.sum())

    @property
    def n_ood(self) -> int:
        """Number of OOD images."""
        return int(self.ood_counts.sum())

    def auroc(self) -> float:
        """P(id > ood) + ½ P(id = ood)."""
        return float(self._kept.auroc())

    def aupr_in(self) -> float:
        """Average precision with ID images positive."""
        return float(self._kept.aupr_in())

    def aupr_out(self) -> float:
        """Average precision with OOD images positive, ranked by falling −score."""
        return float(self._kept.aupr_out())

    def fpr(self, rate: float = 0.95) -> float:
        """Share of OOD kept at the largest threshold that keeps at least `rate` of ID."""
        return float(self._kept.fpr(rate))

    def fpr_ood(self, rate: float = 0.95) -> float:
        """Share of ID rejected at the smallest threshold that rejects at least `rate` of OOD."""
        return float(self._kept.fpr_ood(rate))

    def threshold(self, rate: float = 0.95) -> float:
        """The largest observed score at which at least `rate` of ID is kept."""
        enough = self._kept.id >= images_for_rate(rate, self.n_id)
        return float(self.levels[np.argmax(enough)])

    def roc_curve(self) -> RocCurve:
        """The curve at every distinct score; points inside a straight run are left out, which changes no area."""
        x = np.concatenate([[0.0], self._kept.ood / self.n_ood])
        y = np.concatenate([[0.0], self._kept.id / self.n_id])
        rise, run = self.id_counts.astype(float), self.ood_counts.astype(float)
        turns = rise[:-1] * run[1:] != rise[1:] * run[:-1]
        corner = np.concatenate([[True], turns, [True]])
        return RocCurve(x[corner], y[corner])

    def metrics(self, rate: float = 0.95) -> dict[str, float]:
        """Every ranking metric by name; the two FPR names carry the rate, as in `fpr95` and `fpr95_ood`."""
        return {name: float(value) for name, value in self._kept.metrics(rate).items()}

    def estimates(
        self, rate: float = 0.95, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
    ) -> dict[str, Estimate]:
        """Every ranking metric with its bootstrap percentile interval.

        ID and OOD images are resampled separately (both set sizes are fixed by the test, not random). An interval
        is [v, v] when no resample differs, as with perfectly separated groups: it then says nothing about doubt.
        """
        if resamples < 1:
            raise InputError(f"resamples must be at least 1, got {resamples!r}.")
        if not 0 < confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}.")
        drawn = [kept.metrics(rate) for kept in self._resample(resamples, seed)]
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        result = {}
        for name, value in self.metrics(rate).items():
            low, high = np.quantile(np.concatenate([block[name] for block in drawn]), tails)
            result[name] = Estimate(value, float(low), float(high))
        return result

    def _resample(self, resamples: int, seed: int) -> Iterator[_Kept]:
        # A generator for each group, so that the draws do not depend on the block size.
        id_rng, ood_rng = np.random.default_rng(seed).spawn(2)
        block = max(1, BLOCK_ENTRIES // (self.n_id + self.n_ood))
        for start in range(0, resamples, block):
            rows = min(block, resamples - start)
            yield _Kept(_draw(self.id_counts, rows, id_rng), _draw(self.ood_counts, rows, ood_rng))


class _Kept:
    """How much of each group is kept at every level, and the metrics from that; the leading axes are resamples."""

    def __init__(self, id_counts: Counts, ood_counts: Counts) -> None:
        self.id_counts, self.ood_counts = id_counts, ood_counts
        self.id, self.ood = id_counts.cumsum(axis=-1), ood_counts.cumsum(axis=-1)
        self.n_id, self.n_ood = self.id[..., -1:], self.ood[..., -1:]

    def metrics(self, rate: float) -> dict[str, Array]:
        percent = f"{100 * rate:.10g}"
        return {
            "auroc": self.auroc(),
            "aupr_in": self.aupr_in(),
            "aupr_out": self.aupr_out(),
            f"fpr{percent}": self.fpr(rate),
            f"fpr{percent}_ood": self.fpr_ood(rate),
        }

    def auroc(self) -> Array:
        # Pairs in halves, so that the sum stays whole: an ID image above counts 2, one at the same level 1.
        halves = (self.ood_counts * (2 * self.id - self.id_counts)).sum(axis=-1)
        return np.asarray(halves / (2.0 * self.n_id[..., 0] * self.n_ood[..., 0]))

    def aupr_in(self) -> Array:
        precision = self.id / np.maximum(self.id + self.ood, 1)
        return np.asarray((self.id_counts * precision).sum(axis=-1) / self.n_id[..., 0])

    def aupr_out(self) -> Array:
        id_below = self.n_id - self.id + self.id_counts
        ood_below = self.n_ood - self.ood + self.ood_counts
        precision = ood_below / np.maximum(id_below + ood_below, 1)
        return np.asarray((self.ood_counts * precision).sum(axis=-1) / self.n_ood[..., 0])

    def fpr(self, rate: float) -> Array:
        needed = images_for_rate(rate, int(self.n_id.flat[0]))
        first = np.argmax(self.id >= needed, axis=-1)[..., None]
        return np.asarray(np.take_along_axis(self.ood, first, axis=-1)[..., 0] / self.n_ood[..., 0])

    def fpr_ood(self, rate: float) -> Array:
        n_ood = int(self.n_ood.flat[0])
        allowed = n_ood - images_for_rate(rate, n_ood)
        # Levels fall and `kept_above` rises along them: the first rising threshold that rejects enough is the last
        # level with at most `allowed` OOD images above it.
        kept_above = self.ood - self.ood_counts
        last = (kept_above <= allowed).sum(axis=-1)[..., None] - 1
        id_kept = np.take_along_axis(self.id - self.id_counts, last, axis=-1)
        return np.asarray(((self.n_id - id_kept) / self.n_id)[..., 0])


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """P(id > ood) + ½ P(id = ood)."""
    return RankedScores(id_scores, ood_scores).auroc()


def aupr_in(id_scores: Any, ood_scores: Any) -> float:
    """Average precision with ID images positive."""
    return RankedScores(id_scores, ood_scores).aupr_in()


def aupr_out(id_scores: Any, ood_scores: Any) -> float:
    """Average precision with OOD images positive."""
    return RankedScores(id_scores, ood_scores).aupr_out()


def fpr(id_scores: Any, ood_scores: Any, rate: float = 0.95) -> float:
    """Share of OOD kept when at least `rate` of ID is kept: `fpr95`."""
    return RankedScores(id_scores, ood_scores).fpr(rate)


def fpr_ood(id_scores: Any, ood_scores: Any, rate: float = 0.95) -> float:
    """Share of ID rejected when at least `rate` of OOD is rejected: `fpr95_ood`."""
    return RankedScores(id_scores, ood_scores).fpr_ood(rate)


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

    Each is a pair (ID scores, OOD scores) of the same images in the same order: in every resample both see the same
    ones, so that what makes an image hard for both does not widen the interval.
    """
    one, other = _Levels(*first), _Levels(*second)
    if (one.n_id, one.n_ood) != (other.n_id, other.n_ood):
        raise InputError(
            f"paired_differences compares scores of the same images, got {one.n_id} and {one.n_ood} against "
            f"{other.n_id} and {other.n_ood}."
        )
    id_rng, ood_rng = np.random.default_rng(seed).spawn(2)
    block = max(1, BLOCK_ENTRIES // (one.n_id + one.n_ood))
    drawn: dict[str, list[Array]] = {}
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        ids = id_rng.integers(one.n_id, size=(rows, one.n_id))
        oods = ood_rng.integers(one.n_ood, size=(rows, one.n_ood))
        before, after = one.drawn(ids, oods).metrics(rate), other.drawn(ids, oods).metrics(rate)
        for name in before:
            drawn.setdefault(name, []).append(after[name] - before[name])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    start_value, end_value = RankedScores(*first).metrics(rate), RankedScores(*second).metrics(rate)
    result = {}
    for name, blocks in drawn.items():
        low, high = np.quantile(np.concatenate(blocks), tails)
        result[name] = Estimate(end_value[name] - start_value[name], float(low), float(high))
    return result


def paired_mean_difference(
    first: Any, second: Any, *, resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """The mean of `second` minus that of `first`, one number (or answer) per image, with its paired interval."""
    change = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if change.ndim != 1 or not len(change):
        raise InputError(f"a paired difference needs one number per image, got shape {change.shape}.")
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK_ENTRIES // len(change))
    means = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        means.append(change[rng.integers(len(change), size=(rows, len(change)))].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(change.mean()), float(low), float(high))


class _Levels:
    """Where each image stands among the distinct scores, falling: what a resample of images is counted by."""

    def __init__(self, id_scores: Any, ood_scores: Any) -> None:
        in_dist, out_dist = check_scores(id_scores, "id_scores"), check_scores(ood_scores, "ood_scores")
        rising, position = np.unique(np.concatenate([in_dist, out_dist]), return_inverse=True)
        position = len(rising) - 1 - position.reshape(-1)
        self._levels, self.n_id, self.n_ood = len(rising), len(in_dist), len(out_dist)
        self._id, self._ood = position[: len(in_dist)], position[len(in_dist) :]

    def drawn(self, ids: Counts, oods: Counts) -> _Kept:
        """The histograms of these images, a row per resample."""
        return _Kept(self._counts(self._id[ids]), self._counts(self._ood[oods]))

    def _counts(self, levels: Counts) -> Counts:
        rows = len(levels)
        flat = levels + np.arange(rows)[:, None] * self._levels
        return np.bincount(flat.ravel(), minlength=rows * self._levels).reshape(rows, self._levels)


def accuracy(predicted: Any, labels: Any) -> float:
    """Share of images whose predicted class is their label."""
    return accuracy_estimate(predicted, labels).value


def accuracy_estimate(predicted: Any, labels: Any, *, confidence: float = 0.95) -> Estimate:
    """Accuracy with its Wilson score interval, which stays honest at 0 and at 100 %, where the bootstrap collapses."""
    guesses, truth = _as_array(predicted), _as_array(labels)
    if guesses.shape != truth.shape or guesses.ndim != 1:
        raise InputError(f"predicted and labels must be lists of one length, got {guesses.shape} and {truth.shape}.")
    if not len(guesses):
        raise InputError("accuracy needs at least one labelled image, and got none.")
    return proportion_estimate(int((guesses == truth).sum()), len(guesses), confidence=confidence)


def proportion_estimate(successes: int, total: int, *, confidence: float = 0.95) -> Estimate:
    """The share `successes / total` with its Wilson score interval (Wilson, JASA 1927)."""
    if total < 1 or not 0 <= successes <= total:
        raise InputError(f"a proportion needs 0 ≤ successes ≤ total and total ≥ 1, got {successes} of {total}.")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def check_scores(scores: Any, name: str) -> Array:
    """Scores as a float64 vector; empty groups and NaN are errors that name them. Infinities rank as they should."""
    array = _as_array(scores)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold real numbers, got {array.dtype}.")
    array = array.astype(np.float64)
    if array.ndim != 1:
        raise InputError(f"{name} must hold one number per image, got shape {array.shape}.")
    if not len(array):
        raise InputError(f"{name} is empty: a metric needs at least one image of each group.")
    bad = np.flatnonzero(np.isnan(array))
    if len(bad):
        raise InputError(f"{name} hold NaN for {len(bad)} image(s), the first is number {bad[0]}.")
    return array


def images_for_rate(rate: float, total: int) -> int:
    """How many of `total` images make up at least the share `rate`: ⌈rate·total⌉, at least one."""
    if not 0 < rate <= 1:
        raise InputError(f"rate must be above 0 and at most 1, got {rate!r}.")
    # Rounded first: 0.95 · 20 is 19.000000000000004 in floating point, and its ceiling would be 20.
    return max(1, math.ceil(round(rate * total, 9)))


def _histogram(scores: Array, rising: Array) -> Counts:
    """How many of the scores are at each level. Sorted first, they are found without jumping about in memory."""
    return np.bincount(np.searchsorted(rising, np.sort(scores)), minlength=len(rising))


def _draw(counts: Counts, rows: int, rng: np.random.Generator) -> Counts:
    """`rows` bootstrap resamples of the images behind a histogram, as histograms (rows, levels)."""
    level_of_image = np.repeat(np.arange(len(counts)), counts)
    total = len(level_of_image)
    drawn = level_of_image[rng.integers(total, size=(rows, total))]
    drawn += np.arange(rows)[:, None] * len(counts)
    return np.bincount(drawn.ravel(), minlength=rows * len(counts)).reshape(rows, len(counts))


def _as_array(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of a list, an array, or a tensor on any device and of any precision."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)
    return np.asarray(values)
