"""The Detector: classifier + score + threshold. It says which class an image is, and whether it is any of them."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.progress import Progress
from deltaenergy.recognition import asks_words, check_known
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.defaults import default_score
from deltaenergy.scores.registry import make_score
from deltaenergy.scores.runnable import check_runnable, given_by
from deltaenergy.scoring import Scored, score_images, stream_scores
from deltaenergy.verdicts import verdict_word

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from deltaenergy.models.base import Model


# Several times what batches of other sizes were seen to do, and far too little to let anything else in.
SLACK_OF_RANGE, SLACK_OF_SIZE = 2e-5, 4e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the detector says of one image.

    Attributes:
        id: the image's path, or its position in the input.
        label: the most similar class; meaningful when the image is in-distribution.
        confidence: softmax probability of that class at the model's own temperature.
        score: larger = more in-distribution.
        p_value: share of calibration images with a score at most this one (conformal; see `Detector.calibrate`).
        is_ood: whether the score is below the threshold by more than rounding (see `slack_of`), or not a number:
            then nothing speaks for the image.
    """

    id: str
    label: str
    confidence: float
    score: float
    p_value: float
    is_ood: bool

    @property
    def verdict(self) -> str:
        """*known* or *none of these*."""
        return verdict_word(self.is_ood)


class Predictions(Sequence[Verdict]):
    """Verdicts in input order, and the images that could not be read."""

    def __init__(self, verdicts: list[Verdict], unreadable: list[Unreadable]) -> None:
        self._verdicts = verdicts
        self.unreadable = unreadable

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        return self._verdicts[index]

    def __len__(self) -> int:
        return len(self._verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts)

    def to_table(self) -> pa.Table:
        """One row per verdict, as a pyarrow table (`.to_pandas()` makes a data frame)."""
        import pyarrow as pa

        columns = list(Verdict.__dataclass_fields__)
        return pa.table({name: [getattr(verdict, name) for verdict in self] for name in columns})


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


class Detector:
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
        self.classifier = classifier
        self.score = make_score(default_score(classifier.model) if score is None else score)
        self.threshold: float | None = None
        self.keep: float | None = None
        # Ascending ID scores: the reference distribution of p-values.
        self.calibration_scores: npt.NDArray[np.float64] = np.zeros(0)
        # Calibration images that could not be read.
        self.unreadable: list[Unreadable] = []
        # Bound when it is first needed: negative labels take minutes.
        self._scorer = self.score.bind(classifier, state=state) if state else None
        self._binding = threading.Lock()

    def calibrate(
        self, images: Any, keep: float = 0.95, *, batch_size: int = 32, progress: Progress | None = None
    ) -> Detector:
        """Set the threshold so that at least the share `keep` of these in-distribution images is accepted.

        The threshold is the largest observed score that at least ⌈keep·n⌉ of the n images reach. Their scores also
        give every later image its conformal p-value (1 + #{i: s_i ≤ s}) / (n + 1): for images exchangeable with
        these, P(p ≤ a) ≤ a (Bates et al., Annals of Statistics 2023). Unreadable images are left out with a warning.
        """
        check_keep(keep)
        check_runnable([self.score], given_by([images], self.classifier))
        # What it learned from other images is learned anew.
        scorer = replace(self.scorer, fitted=not self.score.needs_fit)
        scored = score_images(
            self.classifier,
            [scorer],
            images,
            fit=True,
            keep_features=asks_words(self.classifier),
            batch_size=batch_size,
            progress=progress,
        )
        check_known(self.classifier, scored.items, scored.predicted, scored.features)
        if scored.unreadable:
            first = scored.unreadable[0]
            warnings.warn(
                f"{len(scored.unreadable)} calibration image(s) could not be read and were left out, "
                f"the first is {first.id}: {first.reason}",
                stacklevel=2,
            )
        return self.calibrate_scored(scored, keep)

    def calibrate_scored(self, scored: Scored, keep: float = 0.95) -> Detector:
        """`calibrate` from scores that are known already, such as those of an evaluation."""
        check_keep(keep)
        if self.score.needs_fit:
            self._scorer = scored.scorers[self.score.spec]
        self.unreadable = scored.unreadable
        values = np.sort(scored.values[self.score.spec])
        if not len(values):
            raise InputError("calibrate needs at least one readable in-distribution image, and got none.")
        check_numbers(scored, self.score.spec)
        self.calibration_scores = values
        self.threshold = threshold_at(values, keep)
        self.keep = keep
        return self

    def predict(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Predictions:
        """A verdict for every readable image (or row of unit features); the others are in `.unreadable`."""
        stream = self.stream(images, batch_size=batch_size, progress=progress)
        return Predictions(list(stream), stream.unreadable)

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
        p_values, rejected = self.p_values(values), self.rejects(values)
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

    def rejects(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which scores are below the threshold by more than rounding, or not a number."""
        return ~(values >= self._check_calibrated() - slack_of(self.calibration_scores))

    def p_values(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Conformal p-values (1 + #{calibration ≤ score}) / (n + 1); a score of NaN gets the smallest, 1 / (n + 1)."""
        below = np.where(np.isnan(values), 0, np.searchsorted(self.calibration_scores, values, side="right"))
        return np.asarray((1.0 + below) / (len(self.calibration_scores) + 1.0))

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

    @classmethod
    def load(cls, folder: str | Path, model: Model | None = None, device: str | torch.device = "auto") -> Detector:
        """Read a detector that `save` wrote, with the model it names or the one given, and check that they match."""
        from deltaenergy.artifact import load_detector

        return load_detector(folder, model, device)

    def _check_calibrated(self) -> float:
        if self.threshold is None:
            raise NotFittedError("This detector has no threshold yet: call calibrate(in_distribution_images) first.")
        return self.threshold


def check_keep(keep: float) -> None:
    """Raise `InputError` unless `keep` is a share above zero."""
    if not 0 < keep <= 1:
        raise InputError(f"keep must be above 0 and at most 1, got {keep!r}.")


def check_numbers(scored: Scored, spec: str) -> None:
    """Raise `InputError` if an image's score is NaN: a threshold among such values would mean nothing."""
    bad = np.flatnonzero(np.isnan(scored.values[spec]))
    if len(bad):
        raise InputError(
            f"The score {spec} of the in-distribution image {scored.items[bad[0]].id} is not a number"
            f"{f', as those of {len(bad) - 1} more' if len(bad) > 1 else ''}, so that no threshold can be set. "
            "Leave it out, or use another score."
        )


def slack_of(ascending: npt.NDArray[np.float64]) -> float:
    """How far a score may fall short of its threshold by rounding alone, told by the range of the ID scores.

    An image tower rounds otherwise in a batch of another size, which moves scores by up to a few millionths of their
    range; an image that set the threshold must not be rejected for that.
    """
    if not len(ascending):
        return 0.0
    low, high = float(ascending[0]), float(ascending[-1])
    return SLACK_OF_RANGE * (high - low) + SLACK_OF_SIZE * max(abs(low), abs(high))


def threshold_at(ascending: npt.NDArray[np.float64], keep: float) -> float:
    """The largest observed score that at least ⌈keep·n⌉ of the n ascending scores reach."""
    # keep·n is rounded first: 0.95 · 20 is 19.000000000000004 in floating point, and its ceiling would be 20.
    kept = max(1, math.ceil(round(keep * len(ascending), 9)))
    return float(ascending[len(ascending) - kept])
