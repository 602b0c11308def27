"""Whether tuning helped: tuned classifiers compared with zero-shot, on images that they were not trained on.

    accuracy   share of the images that are classified correctly, with all classes
    AUROC      detection of left-out classes: classes are split into parts, each part is left out in turn, and the
               detector's score separates its images from those of the other classes; mean over the parts. A score
               that learns from known images is cross-fitted (`deltaenergy.scoring.CrossFitted`)

For AUROC every method is tuned again without the part: removing columns of a finished classifier would be too
optimistic, because it has seen images of those classes as negatives. Only methods that train without an encoder are
measured; for the others there is no AUROC.

The images are held out. If there are none, the training images are cross-validated: in fold f of five, image j of its
class is held out if j mod 5 = f; for AUROC, part f of the classes is used with fold f of the images.

An estimate is a mean of terms φ_i over images (for AUROC: their placements among those of the other group, DeLong et
al., Biometrics 1988), so its variance is Σ φ_i², and that of a difference of two methods is Σ (φ_i − φ'_i)².
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.linear_probe import held_out_in
from deltaenergy.classifiers.methods import Method
from deltaenergy.classifiers.subset import ClassSubset
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.evaluation import leave_out
from deltaenergy.evaluation.leave_out import Floats, Ints
from deltaenergy.models.base import Model
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.scoring import bind, score_images
from deltaenergy.source import as_source
from deltaenergy.stats.metrics import Estimate, RankedScores, proportion_estimate
from deltaenergy.tuning.prepare import TrainSet
from deltaenergy.tuning.tune import tune
from deltaenergy.tuning.views import CachedViews

PARTS = 5
# At least two classes must remain: one cannot be tuned.
FEWEST_CLASSES = 3
# Above this many training images times classes, tuning five more times would take long.
MOST_WORK = 4_000_000
NORMAL = NormalDist().inv_cdf(0.975)
ZERO_SHOT = "zero-shot"
TOO_FEW = "AUROC not measured: there are too few images"


@dataclass(frozen=True)
class TestImages:
    """Labelled images to measure on, encoded by the model; `drawn` if they were trained on."""

    __test__ = False  # for pytest, which would collect it by its name

    items: Sequence[ImageItem]
    labels: Ints
    features: torch.Tensor
    source: str
    drawn: bool = False


@dataclass(frozen=True)
class InfluenceTerms:
    """An estimate as a mean over images: its value, and the share φ_i of each image in its error."""

    value: float
    shares: Floats
    images: int

    def interval(self, base: InfluenceTerms | None = None) -> Estimate:
        """The value with its 95% interval, or its paired difference to `base`."""
        value = self.value - (base.value if base else 0.0)
        half = NORMAL * float(np.sqrt(np.square(self.shares - (base.shares if base else 0.0)).sum()))
        return Estimate(value, value - half, value + half)

    def share(self) -> Estimate:
        """A share of the images with its Wilson interval."""
        return proportion_estimate(round(self.value * self.images), self.images)


@dataclass(frozen=True)
class GainRow:
    """The results of one method; None if not measured. Gains are over zero-shot on the same images."""

    method: str
    accuracy: Estimate | None
    auroc: Estimate | None
    accuracy_gain: Estimate | None
    auroc_gain: Estimate | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: value._asdict() if isinstance(value, Estimate) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class TuningGain:
    """Zero-shot (if there are class texts) and the tuned methods, in order."""

    rows: list[GainRow]
    kept: str
    source: str
    images: int
    score: str

    @property
    def kept_row(self) -> GainRow:
        return next(row for row in self.rows if row.method == self.kept)

    def warnings(self) -> list[str]:
        """A sentence for each metric in which the kept method is behind zero-shot."""
        sentences = []
        for what, name in (("accuracy", "accuracy"), ("auroc", "detection of left-out classes (AUROC)")):
            gain: Estimate | None = getattr(self.kept_row, f"{what}_gain")
            after: Estimate | None = getattr(self.kept_row, what)
            if gain is None or after is None or gain.value >= 0:
                continue
            chance = ", so it may be chance" if gain.high >= 0 else ""
            sentences.append(
                f"Tuning made {name} worse: {100 * (after.value - gain.value):.1f}% with zero-shot, "
                f"{100 * after.value:.1f}% with {self.kept} (difference {100 * gain.value:+.1f}, 95% interval "
                f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}{chance}). Try another method (`method='auto'`), "
                "more images, or stay with zero-shot."
            )
        return sentences

    def to_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "measured_on": self.source,
            "images": self.images,
            "score": self.score,
            "rows": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True)
class TunedCandidate:
    """A tuned classifier, and what it was tuned on."""

    method: Method
    classifier: Classifier
    train: TrainSet


def measure_gain(
    model: Model,
    tried: Sequence[TunedCandidate],
    test: TestImages,
    score: Score,
    *,
    kept: str | None = None,
    seed: int = 1,
    recipe: Mapping[str, Any] | None = None,
    batch_size: int = 32,
) -> TuningGain:
    """Measure every method on `test`. Keep `kept`, or the method with the largest mean of accuracy and AUROC.

    Only accuracy counts if AUROC was not measured for all; on ties the earlier method wins.
    """
    measure = _Measure(model, test, score, seed, dict(recipe or {}), batch_size)
    measured = [(candidate, measure.accuracy(candidate), measure.auroc(candidate)) for candidate in tried]
    base = next(
        ((accuracy, auroc) for candidate, accuracy, auroc in measured if candidate.method.name == ZERO_SHOT),
        (None, None),
    )
    rows = []
    for candidate, accuracy, auroc in measured:
        is_base = candidate.method.name == ZERO_SHOT
        rows.append(
            GainRow(
                candidate.method.spec,
                None if accuracy is None else accuracy.share(),
                None if auroc is None else Estimate(*(min(max(number, 0.0), 1.0) for number in auroc.interval())),
                None if is_base or accuracy is None or base[0] is None else accuracy.interval(base[0]),
                None if is_base or auroc is None or base[1] is None else auroc.interval(base[1]),
                measure.why_not(candidate) or TOO_FEW if auroc is None else "",
            )
        )
    return TuningGain(rows, kept or best(rows), test.source, len(test.labels), score.spec)


def best(rows: Sequence[GainRow]) -> str:
    """The method with the largest mean of accuracy and AUROC, or accuracy if AUROC is not known for all."""
    both = all(row.auroc is not None for row in rows)

    def quality(row: GainRow) -> float:
        accuracy = -1.0 if row.accuracy is None else row.accuracy.value
        return (accuracy + row.auroc.value) / 2 if both and row.auroc is not None else accuracy

    return max(rows, key=quality).method


def can_tune_again(method: Method, train: TrainSet) -> bool:
    """Whether a method can be tuned several more times: without an encoder, on a moderate number of cached views."""
    work = len(train.sample.items) * len(train.sample.classes)
    return method.quick and isinstance(train.images, CachedViews) and work <= MOST_WORK


@dataclass(frozen=True)
class _Measure:
    """What all methods share."""

    model: Model
    test: TestImages
    score: Score
    seed: int
    recipe: dict[str, Any]
    batch_size: int

    def accuracy(self, candidate: TunedCandidate) -> InfluenceTerms | None:
        """Which images are classified correctly."""
        labels = self.test.labels
        if not self.test.drawn or candidate.method.name == ZERO_SHOT:
            asked = np.ones(len(labels), dtype=bool) if not self.test.drawn else self._folds() >= 0
            return _mean(self._predicted(candidate.classifier) == labels, asked) if asked.any() else None
        if not can_tune_again(candidate.method, candidate.train):
            return None
        folds, hits = self._folds(), np.zeros(len(labels), dtype=bool)
        for fold in np.unique(folds[folds >= 0]):
            tuned = self._tune(candidate, folds != fold, range(len(candidate.classifier.classes)))
            hits[folds == fold] = (self._similarities(tuned).argmax(axis=1) == labels)[folds == fold]
        return _mean(hits, folds >= 0) if (folds >= 0).any() else None

    def auroc(self, candidate: TunedCandidate) -> InfluenceTerms | None:
        """How well the score separates left-out classes from the others, mean over the parts."""
        if self.why_not(candidate):
            return None
        classes, labels, folds = len(candidate.classifier.classes), self.test.labels, self._folds()
        terms = []
        for part, left_out in enumerate(leave_out.folds(classes, PARTS, self.seed)):
            kept = np.setdiff1d(np.arange(classes), left_out)
            unknown = np.isin(labels, left_out)
            known = ~unknown & (folds == part) if self.test.drawn else ~unknown
            # A score that learns from known images is measured on others.
            if known.sum() < (2 if self.score.needs_fit else 1) or not unknown.any():
                continue
            if candidate.method.name == ZERO_SHOT:
                classifier: Classifier = ClassSubset(candidate.classifier, kept.tolist())
            else:
                classifier = self._tune(candidate, folds != part if self.test.drawn else None, kept.tolist())
            terms.append(_placements(*self._scores(classifier, known, unknown), known, unknown))
        if not terms:
            return None
        shares = np.mean([term.shares for term in terms], axis=0)
        return InfluenceTerms(float(np.mean([term.value for term in terms])), shares, len(labels))

    def why_not(self, candidate: TunedCandidate) -> str:
        """Why AUROC is not measured; empty if it is."""
        if self.score.needs & {Need.PATCHES, Need.PIXELS, Need.TEXTS} or self.score.own_to is not None:
            return f"AUROC not measured: {self.score.spec} needs more than features"
        if len(candidate.classifier.classes) < FEWEST_CLASSES:
            return "AUROC not measured: leaving one class out needs at least three classes"
        if candidate.method.name != ZERO_SHOT and not can_tune_again(candidate.method, candidate.train):
            return f"AUROC not measured: {candidate.method.name} would have to be tuned {PARTS} times more"
        if self.test.drawn and (self._folds() < 0).all():
            return "nothing measured: there is only one image per class"
        return ""

    def _folds(self) -> Ints:
        return held_out_in(torch.from_numpy(self.test.labels), PARTS).numpy()

    def _tune(
        self, candidate: TunedCandidate, rows: npt.NDArray[np.bool_] | None, classes: Sequence[int]
    ) -> Classifier:
        """The method on some of its training images, for some of its classes."""
        labels = np.array(candidate.train.sample.labels)
        chosen = np.isin(labels, np.array(list(classes))) & (True if rows is None else rows)
        part = candidate.train.take(np.flatnonzero(chosen).tolist(), list(classes))
        with warnings.catch_warnings():
            # Warnings were already given when the method was tuned on all images.
            warnings.simplefilter("ignore")
            return tune(self.model, part.sample.classes, part, candidate.method, seed=self.seed, recipe=self.recipe)

    def _predicted(self, classifier: Classifier) -> Ints:
        if classifier.takes_features:
            return np.asarray(self._similarities(classifier).argmax(axis=1), dtype=np.int64)
        scored = score_images(classifier, [], as_source(list(self.test.items)), batch_size=self.batch_size)
        return np.asarray(scored.predicted, dtype=np.int64)

    def _similarities(self, classifier: Classifier) -> npt.NDArray[Any]:
        with torch.inference_mode():
            return np.asarray(classifier(Inputs(self.test.features)).similarities.float().cpu())

    def _scores(
        self, classifier: Classifier, known: npt.NDArray[np.bool_], unknown: npt.NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Scores of the known and of the unknown images; a score that learns is cross-fitted on the known images."""
        with torch.inference_mode():
            of_known, of_unknown = (
                ScoreInputs(classifier(Inputs(rows)).similarities, rows)
                for rows in (self.test.features[torch.from_numpy(chosen)] for chosen in (known, unknown))
            )
        (scorer,) = bind(classifier, [self.score])
        return leave_out.score_both(scorer, of_known, self.test.labels[known], of_unknown)


def _mean(hits: npt.NDArray[np.bool_], asked: npt.NDArray[np.bool_]) -> InfluenceTerms:
    value, images = float(hits[asked].mean()), int(asked.sum())
    return InfluenceTerms(value, np.where(asked, hits - value, 0.0) / images, images)


def _placements(
    known_scores: Floats, unknown_scores: Floats, known: npt.NDArray[np.bool_], unknown: npt.NDArray[np.bool_]
) -> InfluenceTerms:
    """AUROC, and the share of each image in its error: (V_i − AUROC) / size of its group."""
    value = RankedScores(known_scores, unknown_scores).auroc()
    shares = np.zeros(len(known))
    for own, other, rows, sign in (
        (known_scores, unknown_scores, known, 1.0),
        (unknown_scores, known_scores, unknown, -1.0),
    ):
        ranked = np.sort(other)
        below = (np.searchsorted(ranked, own, "left") + np.searchsorted(ranked, own, "right")) / (2 * len(ranked))
        placement = below if sign > 0 else 1 - below
        shares[rows] = (placement - value) / len(own)
    return InfluenceTerms(value, shares, len(known))
