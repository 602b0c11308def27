"""The mathematics of thresholds: what share of new images a rule keeps, conformal p-values, false discoveries.

Everything here takes plain numbers: scores of n known images in ascending order, s_(1) ≤ … ≤ s_(n), larger = more
in-distribution. An image is accepted if its score is at least the threshold.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

# Several times what batches of other sizes were seen to do, and far too little to let anything else in.
SLACK_OF_RANGE, SLACK_OF_SIZE = 2e-5, 4e-6
# Unless told otherwise, so sure is the share of new images that a threshold keeps.
CONFIDENCE = 0.9
# A guarantee "costs little" when it keeps no more than this share of (1 − keep) beyond what was asked for.
SMALL_COST = 0.2
# A score that learns from images gets at least so many, apart from those that set its threshold.
LEAST_TO_FIT = 20
# Sums of probabilities are this exact; 1 − 0.9 in floating point is not 0.1.
ROUNDING = 1e-9


class NoGuarantee(UserWarning):
    """There were too few images for the guarantee that was asked for."""


class Words(NamedTuple):
    """How a promise calls an image, those that it was set on, and what becomes of the share that is kept."""

    image: str = "image"
    these: str = "these"
    accepted: str = "accepted"


@dataclass(frozen=True)
class Guarantee:
    """What a threshold promises of new images like those it was set on; `str()` says it in words.

    Attributes:
        keep: the share of known images to accept.
        confidence: how sure it is that new images are kept at that share; None: there is no such promise, and the
            share was kept of the calibration images alone.
        wanted: the confidence that was asked for.
        images: how many set the threshold.
        fitted_on: how many others the score learned from.
        seen: whether score or classifier learned from the very images that set the threshold.
        own: classes with a threshold of their own.
        pooled: classes that had too few images for one.
    """

    keep: float
    confidence: float | None
    images: int
    wanted: float | None = None
    fitted_on: int = 0
    seen: bool = False
    own: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.told(Words())

    def told(self, words: Words) -> str:
        """The promise in the words of a page that has its own."""
        image = words.image
        sentences = [self._promise(words) if self.confidence is not None else self._in_sample(words)]
        if self.seen:
            sentences.append(f"Score or classifier learned from the same {image}s, so that new ones fare worse.")
        if self.wanted is not None and self.confidence is None:
            sentences.append(self._lacking(self.wanted, words))
        if self.own or self.pooled:
            sentences.append(self._classes(words))
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the words, as JSON values."""
        return {**asdict(self), "own": list(self.own), "pooled": list(self.pooled), "text": str(self)}

    def _promise(self, words: Words) -> str:
        told = f"set on {self.images} {words.image}{'s' * (self.images != 1)}"
        told += f", the score fitted to {self.fitted_on} others" if self.fitted_on else ""
        return (
            f"Of new {words.image}s like {words.these}, at least {percent(self.keep)} are {words.accepted}, with "
            f"{percent(self.confidence)} confidence ({told})."
        )

    def _in_sample(self, words: Words) -> str:
        average = in_sample_count(self.images, self.keep) / (self.images + 1)
        share = "All" if self.keep == 1 else f"At least {percent(self.keep)}"
        about = "fewer" if self.seen else f"{percent(round(average, 3))} on average"
        return (
            f"{share} of the {self.images} calibration {words.image}s are {words.accepted}; of new ones {about}, "
            "without a guarantee."
        )

    def _lacking(self, wanted: float, words: Words) -> str:
        image = words.image
        if self.keep == 1:
            return f"No number of {image}s can promise that all new ones are {words.accepted}."
        least = least_images(self.keep, wanted)
        takes, apart = least, ""
        if self.seen or self.fitted_on:
            takes, apart = least + LEAST_TO_FIT, f" ({LEAST_TO_FIT} to fit the score, {least} to set the threshold)"
        if self.images + self.fitted_on >= takes:
            return f"So there is no guarantee, whatever their number: take {image}s that were not learned from."
        return (
            f"A guarantee with {percent(wanted)} confidence takes {takes} {image}s{apart}; from about "
            f"{comfortable_images(self.keep, wanted)} on it costs little."
        )

    def _classes(self, words: Words) -> str:
        image, accepted = words.image, words.accepted
        least = least_in_class(self.keep, self.wanted)
        if not self.own:
            return f"No class has the {least} rightly named {image}s that a threshold of its own takes."
        of = f"of {'each class' if not self.pooled else _listed(self.own)} that are named rightly"
        if self.confidence is None:
            text = f"By class: at least {percent(self.keep)} of the calibration {image}s {of} are {accepted}."
        else:
            sure = (
                f"at least {percent(self.keep)} are {accepted}, each class with {percent(self.confidence)} confidence"
            )
            text = f"By class: of new {image}s {of}, {sure}."
        if self.pooled:
            text += (
                f" With fewer than {least} rightly named {image}s, {_listed(self.pooled)} share the threshold of all."
            )
        return text


@dataclass(frozen=True, eq=False)
class ClassThresholds:
    """Thresholds by class (Mondrian): an image that is named k is judged by the known images of k that are named k.

    Let G_k be the calibration images of class k that the classifier names k. A new image of class k that is named k
    is exchangeable with G_k, whatever the other classes do, how frequent they are, or how often they are taken for k.
    So, with the threshold and p-value that G_k alone gives, it is accepted at the share `keep` with the confidence
    asked for, and P(p ≤ a | class k, named k) ≤ a. Nothing is promised of images with a wrong name: to keep those as
    well, thresholds would have to fall to where unknown images lie.

    Attributes:
        groups: for each ascending calibration score the class whose G_k it belongs to; −1 if that has no threshold.
        thresholds: by the position of the class.
    """

    groups: npt.NDArray[np.int64]
    thresholds: Mapping[int, float]

    def bounds(self, pooled: float, count: int) -> npt.NDArray[np.float64]:
        """The threshold of each of `count` classes; the pooled one where a class has none."""
        return np.array([self.thresholds.get(k, pooled) for k in range(count)], dtype=np.float64)

    def p_values(
        self,
        ascending: npt.NDArray[np.float64],
        values: npt.NDArray[np.float64],
        named: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float64]:
        """Conformal p-values within the class that each image is named; among all images where that has too few."""
        result = conformal_p_values(ascending, values)
        for k in self.thresholds:
            rows = named == k
            result[rows] = conformal_p_values(ascending[self.groups == k], values[rows])
        return result


def class_thresholds(
    ascending: npt.NDArray[np.float64],
    truth: npt.NDArray[np.int64],
    named: npt.NDArray[np.int64],
    keep: float,
    confidence: float | None,
) -> ClassThresholds:
    """`ClassThresholds` from the true and the predicted class of each ascending calibration score."""
    groups = np.where(truth == named, truth, -1)
    thresholds: dict[int, float] = {}
    for k in np.unique(groups[groups >= 0]).tolist():
        own = ascending[groups == k]
        if len(own) >= least_in_class(keep, confidence):
            thresholds[k] = threshold_of(own, keep, confidence)[0]
    groups[~np.isin(groups, list(thresholds))] = -1
    return ClassThresholds(groups, thresholds)


def threshold_of(
    ascending: npt.NDArray[np.float64], keep: float, confidence: float | None
) -> tuple[float, float | None]:
    """The threshold, and the confidence it holds with: the one asked for, or None if the images are too few."""
    rank = 0 if confidence is None else guaranteed_rank(len(ascending), keep, confidence)
    return (float(ascending[rank - 1]), confidence) if rank else (threshold_at(ascending, keep), None)


def percent(share: float | None) -> str:
    """A share in words: 95 %, 99.9 %."""
    return "" if share is None else f"{100 * share:.6g} %"


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_keep(keep: float) -> None:
    """Raise `InputError` unless `keep` is a share above zero."""
    if not _is_number(keep) or not 0 < keep <= 1:
        raise InputError(f"keep must be above 0 and at most 1, got {keep!r}.")


def check_confidence(confidence: float | None, name: str = "confidence") -> None:
    """Raise `InputError` unless `confidence` is a probability between 0 and 1, both excluded, or None."""
    if confidence is not None and (not _is_number(confidence) or not 0 < confidence < 1):
        raise InputError(f"{name} must be above 0 and below 1 (or None: no guarantee), got {confidence!r}.")


def check_fdr(fdr: float | None, name: str = "fdr") -> None:
    """Raise `InputError` unless `fdr` is a share between 0 and 1, both excluded, or None."""
    if fdr is not None and (not _is_number(fdr) or not 0 < fdr < 1):
        raise InputError(f"{name} must be above 0 and below 1, such as 0.1, got {fdr!r}.")


def threshold_at(ascending: npt.NDArray[np.float64], keep: float) -> float:
    """The in-sample rule: the largest observed score that at least ⌈keep·n⌉ of the n ascending scores reach."""
    return float(ascending[len(ascending) - in_sample_count(len(ascending), keep)])


def in_sample_count(images: int, keep: float) -> int:
    """How many of the images the in-sample rule keeps (more if there are ties)."""
    # keep·n is rounded first: 0.56 · 25 is 14.000000000000002 in floating point, and its ceiling would be 15.
    return max(1, math.ceil(round(keep * images, 9)))


def guaranteed_rank(images: int, keep: float, confidence: float) -> int:
    """The largest k whose score s_(k), as a threshold, keeps the share `keep` of new images; 0 if there is none.

    The share of new images that s_(k) keeps is C = P(S ≥ s_(k)). For a continuous score C has the law
    Beta(n − k + 1, k), so that P(C ≥ keep) = P(Binomial(n, 1 − keep) ≥ k), which must be at least `confidence`: the
    one-sided tolerance limit of Wilks (Annals of Mathematical Statistics 1941).

    Ties only help. Let t* be the largest t with P(S ≥ t) ≥ keep. C < keep means s_(k) > t*: fewer than k of the n
    scores are at most t*. Each is with probability P(S ≤ t*) ≥ 1 − keep, so that this is no likelier than
    Binomial(n, 1 − keep) < k.
    """
    if not images or keep == 1:
        return 0
    # The k-th term is log C(n, k) + k·log(1 − keep) + (n − k)·log(keep), for k = 0 … n.
    k = np.arange(1, images + 1, dtype=np.float64)
    odds = np.log((images - k + 1) / k) + math.log1p(-keep) - math.log(keep)
    terms = images * math.log(keep) + np.concatenate([[0.0], np.cumsum(odds)])
    below = np.cumsum(np.exp(terms))  # P(Binomial ≤ k)
    return min(images, int(np.searchsorted(below, (1 - confidence) * (1 + ROUNDING), side="right")))


def least_images(keep: float, confidence: float) -> int:
    """The smallest n for which there is a guarantee: 1 − keepⁿ ≥ confidence. `keep` must be below 1."""
    return max(1, math.ceil(math.log(1 - confidence) / math.log(keep) - ROUNDING))


def comfortable_images(keep: float, confidence: float) -> int:
    """About how many images make a guarantee cheap, to two figures: the share kept exceeds `keep` by (1 − keep) / 5.

    With z the normal quantile of the confidence, the excess is near z·√(keep·(1 − keep) / n).
    """
    z = max(0.0, NormalDist().inv_cdf(confidence))
    count = max(float(least_images(keep, confidence)), (z / SMALL_COST) ** 2 * keep / (1 - keep))
    step = 10.0 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / step) * step)


def fit_count(images: int, keep: float, confidence: float | None) -> int:
    """How many of the images a score should learn from, so that the others set its threshold; 0: do not split.

    Half of them, or fewer where the other half could not bear a guarantee. Where none is in reach it is half all the
    same: a score that learned a covariance from the images that set its threshold rejects nearly all new ones. Only
    fewer than `LEAST_TO_FIT` images do both, and all do where the calibration images themselves are to be kept.
    """
    if confidence is None or keep == 1:
        return 0
    fit = images - max(math.ceil(images / 2), least_images(keep, confidence))
    return fit if fit >= LEAST_TO_FIT else images // 2 if images >= LEAST_TO_FIT else 0


def least_in_class(keep: float, confidence: float | None) -> int:
    """How many images a class needs for a threshold of its own.

    With a confidence, as many as its guarantee takes. Without, so many that the smallest of their scores keeps the
    share `keep` of new images on average: n / (n + 1) ≥ keep.
    """
    if keep == 1:
        return 1
    if confidence is not None:
        return least_images(keep, confidence)
    return max(1, math.ceil(keep / (1 - keep) - ROUNDING))


def conformal_p_values(ascending: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(1 + #{i: s_i ≤ s}) / (n + 1); a score of NaN gets the smallest, 1 / (n + 1).

    For a score exchangeable with the n, P(p ≤ a) ≤ a (Vovk et al. 2005; Bates et al., Annals of Statistics 2023).
    """
    below = np.where(np.isnan(values), 0, np.searchsorted(ascending, values, side="right"))
    return np.asarray((1.0 + below) / (len(ascending) + 1.0))


def benjamini_hochberg(p_values: npt.NDArray[np.float64], fdr: float) -> npt.NDArray[np.bool_]:
    """Which of m images to call unknown, so that in expectation at most the share `fdr` of these are known ones.

    The k smallest p-values are rejected, k the largest with p_(k) ≤ fdr·k / m (Benjamini & Hochberg, JRSS B 1995).
    Conformal p-values share their calibration images and so depend on each other, but positively (PRDS), under which
    the bound holds (Bates et al., Annals of Statistics 2023, theorem 2).
    """
    check_fdr(fdr)
    count = len(p_values)
    ordered = np.sort(p_values)
    # p-values are fractions: 0.3·1/3 must not fall short of 1/10 by rounding.
    within = np.flatnonzero(ordered <= fdr * np.arange(1, count + 1) / max(1, count) * (1 + ROUNDING))
    return np.asarray(p_values <= ordered[within[-1]]) if len(within) else np.zeros(count, dtype=bool)


def slack_of(ascending: npt.NDArray[np.float64]) -> float:
    """How far a score may fall short of its threshold by rounding alone, told by the range of the ID scores.

    An image tower rounds otherwise in a batch of another size, which moves scores by up to a few millionths of their
    range; an image that set the threshold must not be rejected for that.
    """
    if not len(ascending):
        return 0.0
    low, high = float(ascending[0]), float(ascending[-1])
    return SLACK_OF_RANGE * (high - low) + SLACK_OF_SIZE * max(abs(low), abs(high))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)
