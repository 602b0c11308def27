"""The Detector: classifier + score + threshold. It says which class an image is, and whether it is any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.calibration import calibrate_together, check_calibration, check_numbers, true_classes
from deltaenergy.classifiers.base import Classifier, check_classifier
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.kept_images import KeptImages
from deltaenergy.labels import first_of_name
from deltaenergy.predictions import Predictions, Verdict
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.defaults import default_score
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Scored, stream_scores
from deltaenergy.showing import Shown, some_names
from deltaenergy.thresholds import (
    CONFIDENCE,
    ClassThresholds,
    Guarantee,
    benjamini_hochberg,
    check_fdr,
    class_thresholds,
    conformal_p_values,
    slack_of,
    threshold_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.base import Model

__all__ = ["Detector", "Predictions", "Stream", "Verdict"]


class Stream(Iterator[Verdict]):
    """Verdicts as they are found, one batch ahead at most; `unreadable` grows on the way."""

    def __init__(self, detector: Detector, batches: Iterator[Scored]) -> None:
        self.unreadable: list[Unreadable] = []
        self._verdicts = self._judge(detector, batches)

    def _judge(self, detector: Detector, batches: Iterator[Scored]) -> Iterator[Verdict]:
        for batch in batches:
            self.unreadable += batch.unreadable
            yield from detector.judge(batch)

    def __next__(self) -> Verdict:
        return next(self._verdicts)


class Detector(Shown):
    """A classifier that knows what it does not know.

    Any number of threads may `predict` and `stream` with one detector at the same time.

    Args:
        classifier: zero-shot or tuned.
        score: a name with optional parameters, such as `"delta-energy(tau=0.1,c=1)"`, or a `Score`; by default
            `delta-energy+words`, or `multi-delta-energy` for a model without a text tower (`scores.defaults`).
        state: what the score has learned before, if this detector was saved.
    """

    def __init__(
        self,
        classifier: Classifier,
        score: str | Score | None = None,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        check_classifier(classifier, "A detector")
        self.classifier = classifier
        self.score = make_score(default_score(classifier.model) if score is None else score)
        self.threshold: float | None = None
        self.keep: float | None = None
        # What the threshold promises of new images.
        self.guarantee: Guarantee | None = None
        # How far below the threshold is rounding.
        self.slack = 0.0
        # Ascending ID scores: the reference distribution of p-values.
        self.calibration_scores: npt.NDArray[np.float64] = np.zeros(0)
        # Thresholds of single classes, where they were asked for.
        self.by_class: ClassThresholds | None = None
        # The calibration images themselves, where it was asked to keep them.
        self.kept_images: KeptImages | None = None
        # Calibration images that could not be read.
        self.unreadable: list[Unreadable] = []
        # Bound when it is first needed: negative labels take minutes.
        self._scorer = self.score.bind(classifier, state=state) if state else None
        self._binding = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # For other processes of the same program: a lock cannot be sent.
        return {name: value for name, value in self.__dict__.items() if name != "_binding"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _binding=threading.Lock())

    def calibrate(
        self,
        images: Any,
        keep: float = 0.95,
        confidence: float | None = CONFIDENCE,
        *,
        by_class: bool = False,
        labels: Sequence[str] | None = None,
        keep_images: bool = False,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Detector:
        """Set the threshold so that at least the share `keep` of known images is accepted.

        With a `confidence`, that holds for *new* images like these: the threshold is s_(k), the k-th smallest of the n
        scores, k the largest with P(Beta(n − k + 1, k) ≥ keep) ≥ confidence (`thresholds.guaranteed_rank`). Where the
        images are too few for that, and with `confidence=None`, it holds for these images alone: the threshold is the
        largest observed score that at least ⌈keep·n⌉ of them reach. `guarantee` says which it is; a `NoGuarantee`
        warning says how many images are lacking.

        Their scores also give every later image its conformal p-value (1 + #{i: s_i ≤ s}) / (n + 1): for images
        exchangeable with these, P(p ≤ a) ≤ a (Bates et al., Annals of Statistics 2023).

        A score that must learn from images does so from one part of them, drawn with a fixed seed, and the other part
        gives threshold and p-values; with fewer than 20 images, or without `confidence`, all images do both.

        With `by_class`, each class that has enough images gets a threshold of its own, so that a rare class is not the
        one that pays (see `thresholds.ClassThresholds`). Images have their class from their folder or table; for rows
        of features give `labels`. Unreadable images are left out with a warning.

        With `keep_images`, features and small pictures of the images that set the threshold are kept, and saved with
        the detector, so that a rejected image can be compared with them (`explain.why`).
        """
        return calibrate_together(
            [self],
            images,
            keep,
            confidence,
            by_class=by_class,
            labels=labels,
            keep_images=keep_images,
            batch_size=batch_size,
            progress=progress,
        )[0]

    def calibrate_scored(
        self,
        scored: Scored,
        keep: float = 0.95,
        confidence: float | None = CONFIDENCE,
        *,
        by_class: bool = False,
        labels: Sequence[str] | None = None,
        keep_images: bool = False,
    ) -> Detector:
        """`calibrate` from scores that are known already. Rows that the score learned from are left out."""
        check_calibration(keep, confidence, by_class=by_class, labels=labels)
        spec, unsplit = self.score.spec, scored
        truth = true_classes(scored, self.classifier.classes, labels) if by_class else None
        if self.score.needs_fit and scored.fit_rows is not None:
            rest = np.setdiff1d(np.arange(len(scored.items)), scored.fit_rows)
            scored, truth = scored.take(rest), None if truth is None else truth[rest]
        values = scored.values[spec]
        if not len(values):
            raise InputError("calibrate needs at least one readable known image, and got none.")
        check_numbers(scored, spec)
        if self.score.needs_fit:
            self._scorer = scored.scorers[spec]
        order = np.argsort(values, kind="stable")
        self.calibration_scores, self.unreadable = values[order], scored.unreadable
        self.kept_images = KeptImages.of(scored.take(order)) if keep_images else None
        seen = self.score.needs_fit and len(unsplit.items) == len(values)
        self.threshold, sure = threshold_of(self.calibration_scores, keep, None if seen else confidence)
        self.keep, self.slack, self.by_class = keep, slack_of(self.calibration_scores), None
        own: list[str] = []
        pooled: list[str] = []
        if truth is not None:
            first, classes = self._first, self.classifier.classes
            named = first[scored.predicted[order]]
            self.by_class = class_thresholds(self.calibration_scores, truth[order], named, keep, sure)
            for k in sorted(set(first.tolist())):
                (own if k in self.by_class.thresholds else pooled).append(classes[k])
        fitted_on = len(unsplit.items) - len(values)
        self.guarantee = Guarantee(keep, sure, len(values), confidence, fitted_on, seen, tuple(own), tuple(pooled))
        return self

    def predict(
        self, images: Any, *, fdr: float | None = None, batch_size: int = 32, progress: Progress | None = None
    ) -> Predictions:
        """A verdict for every readable image (or row of unit features); the others are in `.unreadable`.

        With `fdr`, the threshold plays no part: in expectation at most that share of the images called unknown are
        known ones (`thresholds.benjamini_hochberg` on the p-values of all these images together).
        """
        if fdr is not None:
            self.check_controls(fdr)
        stream = self.stream(images, batch_size=batch_size, progress=progress)
        found = Predictions(list(stream), stream.unreadable)
        return found if fdr is None else self.control(found, fdr)

    def control(self, predictions: Predictions, fdr: float) -> Predictions:
        """The same images, called unknown so that at most the share `fdr` of those are known ones, in expectation."""
        self.check_controls(fdr)
        rejected = benjamini_hochberg(np.array([verdict.p_value for verdict in predictions]), fdr)
        verdicts = [
            replace(verdict, is_ood=bool(unknown or np.isnan(verdict.score)))
            for verdict, unknown in zip(predictions, rejected)
        ]
        return Predictions(verdicts, predictions.unreadable, fdr)

    def check_controls(self, fdr: float) -> None:
        """Raise unless this detector's p-values can control the share of false discoveries."""
        check_fdr(fdr)
        self._check_calibrated()
        if self.by_class is not None:
            raise InputError(
                "fdr needs p-values against all calibration images, and this detector has thresholds by class: "
                "calibrate one without by_class."
            )
        if not len(self.calibration_scores):
            raise InputError("fdr needs p-values, and this detector has no calibration images: calibrate it again.")

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Stream:
        """The verdicts of `predict` one by one, as they are found: memory does not grow with the number of images.

        What is wrong with the arguments is said at once; images are read as verdicts are asked for.
        """
        self._check_calibrated()
        batches = stream_scores(self.classifier, [self.scorer], images, batch_size=batch_size, progress=progress)
        return Stream(self, batches)

    def judge(self, scored: Scored) -> Predictions:
        """Verdicts from scores that are known already."""
        values = scored.values[self.score.spec]
        p_values, rejected = self.p_values(values, scored.predicted), self.rejects(values, scored.predicted)
        verdicts = [
            Verdict(
                id=item.id,
                label=self.classifier.classes[scored.predicted[i]],
                confidence=float(scored.confidence[i]),
                score=float(values[i]),
                p_value=float(p_values[i]),
                is_ood=bool(rejected[i]),
            )
            for i, item in enumerate(scored.items)
        ]
        return Predictions(verdicts, scored.unreadable)

    def rejects(
        self, values: npt.NDArray[np.float64], predicted: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Which scores are below the threshold by more than rounding, or not a number.

        A detector with thresholds by class must be told the position of the class that each image is named.
        """
        bound: float | npt.NDArray[np.float64] = self._check_calibrated()
        if self.by_class is not None:
            bound = self.bounds()[_needed(predicted)]
        return ~(values >= bound - self.slack)

    def bounds(self) -> npt.NDArray[np.float64]:
        """The threshold of each class, by position: its own, or the one of all."""
        pooled, count = self._check_calibrated(), len(self.classifier.classes)
        return np.full(count, pooled) if self.by_class is None else self.by_class.bounds(pooled, count)[self._first]

    def p_values(
        self, values: npt.NDArray[np.float64], predicted: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float64]:
        """Conformal p-values (1 + #{calibration ≤ score}) / (n + 1); a score of NaN gets the smallest, 1 / (n + 1).

        With thresholds by class, the calibration images are those of the class that the image is named.
        """
        if self.by_class is None:
            return conformal_p_values(self.calibration_scores, values)
        return self.by_class.p_values(self.calibration_scores, values, self._first[_needed(predicted)])

    @property
    def class_thresholds(self) -> dict[str, float]:
        """The thresholds of the classes that have their own."""
        own = {} if self.by_class is None else self.by_class.thresholds
        return {self.classifier.classes[k]: bound for k, bound in own.items()}

    @property
    def _first(self) -> npt.NDArray[np.int64]:
        """For each class the first position of the same name: classes that stand twice count as one."""
        return np.array(first_of_name(self.classifier.classes), dtype=np.int64)

    def predict_proba(self, images: Any, *, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Probabilities (N, K) of the classes among themselves, as `Classifier.predict_proba`; no verdict."""
        return self.classifier.predict_proba(images, batch_size=batch_size)

    def top_k(self, images: Any, k: int = 5, *, batch_size: int = 32) -> list[list[tuple[str, float]]]:
        """The k most probable classes of each image with their probabilities, as `Classifier.top_k`; no verdict."""
        return self.classifier.top_k(images, k, batch_size=batch_size)

    def plot(self, predictions: Predictions | None = None, ax: Any = None) -> Any:
        """A histogram of the calibration scores with the threshold, and of the scores of `predictions` beside them.

        On matplotlib's axes `ax` or new ones, which are returned.
        """
        from deltaenergy.plotting import score_histogram

        groups = {"calibration images": self.calibration_scores}
        if predictions is not None:
            groups["these images"] = np.array([verdict.score for verdict in predictions], np.float64)
        return score_histogram(groups, self._check_calibrated(), self.score.spec, ax)

    def _facts(self) -> dict[str, object]:
        classes = self.classifier.classes
        facts: dict[str, object] = {
            "score": self.score.spec,
            "classes": f"{len(classes)} ({some_names(classes)})",
            "method": self.classifier.method.spec,
            "model": repr(self.classifier.base_model.name),
        }
        if self.threshold is None or self.keep is None:
            facts["threshold"] = "none yet, call calibrate"
        else:
            images = len(self.calibration_scores)
            facts["threshold"] = f"{self.threshold:.6g}, keeps {100 * self.keep:g} % by {images} images"
        return facts

    @property
    def scorer(self) -> Scorer:
        """The score bound to the classifier, with what it has learned."""
        return self._bind(None)

    def prepare(self, progress: Progress | None = None) -> Detector:
        """Compute the score's text-side state now rather than with the first image: negative labels take minutes."""
        self._bind(progress)
        return self

    @property
    def score_state(self) -> Mapping[str, torch.Tensor]:
        """What the score has learned so far, by name: nothing if it has not been prepared."""
        return {} if self._scorer is None else self._scorer.state

    def _bind(self, progress: Progress | None) -> Scorer:
        with self._binding:
            if self._scorer is None:
                self._scorer = self.score.bind(self.classifier, progress)
            return self._scorer

    def save(self, folder: str | Path) -> None:
        """Write the detector to a folder, in place of one that is there: `detector.json` and a safetensors file."""
        from deltaenergy.artifact import save_detector

        save_detector(self, folder)

    def push_to_hub(self, repo: str, **options: Any) -> str:
        """Send it to the Hugging Face hub as owner/name, with a model card; options of `hub_detectors.push_detector`.

        These are `evaluation`, whose figures the card tells, `private`, `with_images` and `message`.
        """
        from deltaenergy.hub_detectors import push_detector

        return push_detector(self, repo, **options)

    @classmethod
    def load(cls, folder: str | Path, model: Model | None = None, device: str | torch.device = "auto") -> Detector:
        """Read a detector that `save` wrote, with the model it names or the one given, and check that they match.

        `hf:owner/name` is one that `push_to_hub` sent; `hf:owner/name@revision` an earlier one.
        """
        from deltaenergy.artifact import load_detector

        return load_detector(folder, model, device)

    def require_kept_images(self, who: str) -> KeptImages:
        """The calibration images that it kept, or an error that says what `who` cannot do without them."""
        if self.kept_images is None:
            raise InputError(
                f"{who} compares with calibration images, and this detector kept none: calibrate it again with "
                "keep_images=True (deltaenergy calibrate --keep-images)."
            )
        return self.kept_images

    def _check_calibrated(self) -> float:
        if self.threshold is None:
            raise NotFittedError("This detector has no threshold yet: call calibrate(in_distribution_images) first.")
        return self.threshold


def _needed(predicted: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    if predicted is None:
        raise InputError("This detector has thresholds by class: give the predicted class of each score as well.")
    return predicted
