"""Classification metrics: accuracy per class, confusions, calibration of confidence, risk and coverage.

per class      accuracy on the images of a class, with its Wilson interval
ECE            Σ_b (n_b / n) · |accuracy_b − mean confidence_b| over 15 bins of equal width (Guo et al., ICML 2017)
risk at c      the share of mistakes among the share c of images with the highest scores
AURC           the mean, over all images i, of the risk among those whose score is at least that of i
               (Geifman et al., ICLR 2019; ties have one risk, so their order does not matter)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import EvaluatedSet, Group, flat
from deltaenergy.evaluation.sets import same_class
from deltaenergy.stats.metrics import Estimate, proportion_estimate

if TYPE_CHECKING:
    from deltaenergy.evaluation.results import Evaluation

Array = npt.NDArray[np.float64]
BINS = 15
# Points of a risk–coverage curve that are kept in JSON and drawn.
CURVE_POINTS = 200


@dataclass(frozen=True)
class ClassRow:
    """Accuracy on the images of one class."""

    name: str
    images: int
    accuracy: Estimate


@dataclass(frozen=True)
class Confused:
    """How many images of one class were predicted as another class."""

    truth: str
    named: str
    images: int


@dataclass(frozen=True)
class Bin:
    """Images of similar confidence: their number, mean confidence and accuracy."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class RiskCoverage:
    """The share of mistakes among the kept images, from the highest score down; `of` says which images count."""

    of: str
    images: int
    aurc: float
    coverage: Array
    risk: Array


@dataclass(frozen=True)
class Classification:
    """All of it for the labelled images of one group."""

    group: Group
    images: int
    classes: list[ClassRow]
    confusion: list[Confused]
    ece: float
    bins: list[Bin]
    risk_coverage: list[RiskCoverage]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; only nonzero entries of the confusion matrix."""
        return {
            "group": self.group.value,
            "images": self.images,
            "classes": [
                {"class": row.name, "images": row.images, **flat("accuracy", row.accuracy)} for row in self.classes
            ],
            "confusion": [{"class": row.truth, "named": row.named, "images": row.images} for row in self.confusion],
            "reliability": {"ece": self.ece, "bins": [vars(confidence_bin) for confidence_bin in self.bins]},
            "risk_coverage": [
                {**vars(curve), "coverage": curve.coverage.tolist(), "risk": curve.risk.tolist()}
                for curve in self.risk_coverage
            ],
        }


def classification(evaluation: Evaluation) -> list[Classification]:
    """For labelled ID and shifted images; risk and coverage use the primary score."""
    groups = []
    opened = evaluation.in_group(Group.OPEN)
    for group in (Group.ID, Group.SHIFTED):
        sets = [image_set for image_set in evaluation.in_group(group) if image_set.labelled.any()]
        if sets:
            groups.append(_of_group(evaluation, group, sets, opened if group is Group.ID else []))
    return groups


def _of_group(
    evaluation: Evaluation, group: Group, sets: Sequence[EvaluatedSet], opened: Sequence[EvaluatedSet]
) -> Classification:
    primary = evaluation.primary
    labels = np.concatenate([one.labels[one.labelled] for one in sets])
    predicted = np.concatenate([one.scored.predicted[one.labelled] for one in sets])
    confidence = np.concatenate([one.scored.confidence[one.labelled] for one in sets]).astype(np.float64)
    named = same_class(evaluation.classes)[predicted]
    right = labels == named
    ece, bins = reliability(confidence, right)
    curves = []
    scored = [one for one in sets if primary in one.scored.values]
    if scored:
        score = np.concatenate([one.scored.values[primary][one.labelled] for one in scored])
        correct = np.concatenate([one.correct[one.labelled] for one in scored])
        curves.append(risk_coverage(score, correct, of=f"{group.value} images"))
        others = [one.scored.values[primary] for one in opened if primary in one.scored.values]
        if others:
            # Keeping an open image is a mistake, whatever its predicted class.
            score = np.concatenate([score, *others])
            correct = np.concatenate([correct, np.zeros(len(score) - len(correct), dtype=bool)])
            curves.append(risk_coverage(score, correct, of="known and open images"))
    return Classification(
        group,
        len(labels),
        class_rows(labels, right, evaluation.classes),
        confusion(labels, named, evaluation.classes),
        ece,
        bins,
        curves,
    )


def class_rows(labels: npt.NDArray[np.int64], right: npt.NDArray[np.bool_], classes: Sequence[str]) -> list[ClassRow]:
    """Accuracy of every class that has images, in the order of the classes."""
    total = np.bincount(labels, minlength=len(classes))
    hits = np.bincount(labels[right], minlength=len(classes))
    return [
        ClassRow(name, int(n), proportion_estimate(int(k), int(n))) for name, n, k in zip(classes, total, hits) if n
    ]


def confusion(labels: npt.NDArray[np.int64], named: npt.NDArray[np.int64], classes: Sequence[str]) -> list[Confused]:
    """The entries of the confusion matrix that are not zero, by true and predicted class."""
    pairs, counts = np.unique(labels * len(classes) + named, return_counts=True)
    return [
        Confused(classes[pair // len(classes)], classes[pair % len(classes)], int(n)) for pair, n in zip(pairs, counts)
    ]


def reliability(confidence: Array, right: npt.NDArray[np.bool_]) -> tuple[float, list[Bin]]:
    """The expected calibration error and the non-empty bins (a, b]; 0 is in the first."""
    if len(confidence) != len(right) or not len(right):
        raise InputError(
            f"reliability needs a confidence and an answer per image, got {len(confidence)}, {len(right)}."
        )
    edges = np.linspace(0, 1, BINS + 1)
    bin_of = np.searchsorted(edges[1:-1], confidence)
    count = np.bincount(bin_of, minlength=BINS)
    sure = np.bincount(bin_of, confidence, BINS) / np.maximum(count, 1)
    hit = np.bincount(bin_of, right.astype(np.float64), BINS) / np.maximum(count, 1)
    error = float((count * np.abs(hit - sure)).sum() / len(right))
    return error, [
        Bin(float(edges[i]), float(edges[i + 1]), int(count[i]), float(sure[i]), float(hit[i]))
        for i in np.flatnonzero(count)
    ]


def risk_coverage(score: Array, right: npt.NDArray[np.bool_], *, of: str = "images") -> RiskCoverage:
    """Risk over coverage, from the highest score down; NaN comes last."""
    if len(score) != len(right) or not len(right):
        raise InputError(f"risk and coverage need a score and an answer per image, got {len(score)}, {len(right)}.")
    ranked = np.where(np.isnan(score), -np.inf, score)
    order = np.argsort(-ranked, kind="stable")
    values, wrong = ranked[order], (~right[order]).astype(np.float64)
    last = np.flatnonzero(np.r_[values[1:] != values[:-1], True])
    kept, mistakes = last + 1, wrong.cumsum()[last]
    risk = mistakes / kept
    aurc = float((risk * np.diff(np.r_[0, kept])).sum() / len(right))
    few = np.unique(np.linspace(0, len(kept) - 1, min(CURVE_POINTS, len(kept))).round().astype(int))
    return RiskCoverage(of, len(right), aurc, kept[few] / len(right), risk[few])
