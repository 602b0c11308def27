"""The adaptive stream: verdicts that depend on the images that came before, in the order in which they came.

    detector = AdaptiveDetector(classifier, "adaneg").calibrate(id_images, keep=0.95)
    for verdict in detector.stream(images):
        verdict.label, verdict.score, verdict.is_ood                    # no p-value: see below

Every stream begins with a memory that has seen nothing, and keeps it to its end; two streams know nothing of each
other. The threshold is that of `Detector`, set on the scores that in-distribution images get as a stream of their own.
It promises nothing for other streams: scores move as the memory fills. For the same reason there are no conformal
p-values, which need scores that do not depend on each other's order. Shuffle the images, and verdicts change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.calibration import check_numbers
from deltaenergy.errors import InputError
from deltaenergy.scores.adaptive import Adapter, Memory, make_adapter
from deltaenergy.scoring import Scored, stream_scores
from deltaenergy.stats.thresholds import check_keep, threshold_of

if TYPE_CHECKING:
    import numpy.typing as npt

# What every output of an adaptive stream says.
ORDER_DEPENDENT = (
    "Order-dependent: scores and verdicts depend on the images that came before, and have no p-values. "
    "The same images in another order get others."
)


@dataclass(frozen=True, slots=True)
class AdaptiveVerdict:
    """What is said of one image, at its place in the stream.

    Attributes:
        id: the image's path, or its position in the input.
        position: how many images of the stream were judged before it.
        label: the most similar class; meaningful when the image is in-distribution.
        confidence: softmax probability of that class at the model's own temperature.
        score: larger = more in-distribution.
        is_ood: whether the score is below the threshold, or not a number; None if there is no threshold.
    """

    id: str
    position: int
    label: str
    confidence: float
    score: float
    is_ood: bool | None


class AdaptiveStream(Iterator[AdaptiveVerdict]):
    """Verdicts as they are found; `unreadable` grows on the way."""

    order_dependent = True

    def __init__(self, detector: AdaptiveDetector, batches: Iterator[Scored]) -> None:
        self.unreadable: list[Unreadable] = []
        self._verdicts = self._judge(detector, batches)

    def _judge(self, detector: AdaptiveDetector, batches: Iterator[Scored]) -> Iterator[AdaptiveVerdict]:
        position = 0
        for batch in batches:
            self.unreadable += batch.unreadable
            yield from detector.judge(batch, position)
            position += len(batch.items)

    def __next__(self) -> AdaptiveVerdict:
        return next(self._verdicts)


class AdaptiveDetector:
    """A classifier with an adapter and, once it is calibrated, a threshold.

    Args:
        classifier: zero-shot or tuned; it must take features.
        adapter: a name with optional parameters, such as `"tanl(batch=64)"`, or an `Adapter`.
    """

    def __init__(self, classifier: Classifier, adapter: str | Adapter = "adaneg") -> None:
        self.classifier = classifier
        self.adapter = make_adapter(adapter)
        classifier.check_takes_features()
        self.threshold: float | None = None
        self.keep: float | None = None
        self._prepared: dict[str, torch.Tensor] | None = None

    def prepare(self, progress: Progress | None = None) -> AdaptiveDetector:
        """Encode the adapter's words now rather than with the first image."""
        if self._prepared is None:
            self._prepared = self.adapter.prepare(self.classifier, progress)
        return self

    def calibrate(
        self, images: Any, keep: float = 0.95, *, batch_size: int = 32, progress: Progress | None = None
    ) -> AdaptiveDetector:
        """Set the threshold that keeps the share `keep` of these in-distribution images, as a stream of their own."""
        check_keep(keep)
        values = [np.zeros(0)]
        for batch in self.batches(images, batch_size=batch_size, progress=progress):
            check_numbers(batch, self.adapter.spec)
            values.append(batch.values[self.adapter.spec])
        scores = np.sort(np.concatenate(values))
        if not len(scores):
            raise InputError("calibrate needs at least one readable known image, and got none.")
        self.threshold, self.keep = threshold_of(scores, keep, None), keep
        return self

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> AdaptiveStream:
        """Verdicts from a fresh memory, `adapter.batch` images at a time."""
        return AdaptiveStream(self, self.batches(images, batch_size=batch_size, progress=progress))

    def batches(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Iterator[Scored]:
        """What is found for each `adapter.batch` images in turn, scored by a fresh memory that learns from them."""
        self.prepare()
        assert self._prepared is not None
        found = stream_scores(self.classifier, [], images, keep_features=True, batch_size=batch_size, progress=progress)
        return self._adapt(self.adapter.begin(self.classifier, self._prepared), _regroup(found, self.adapter.batch))

    def judge(self, batch: Scored, position: int) -> list[AdaptiveVerdict]:
        """Verdicts of a batch of `batches`, of which the first image has this position."""
        values = batch.values[self.adapter.spec]
        return [
            AdaptiveVerdict(
                id=item.id,
                position=position + i,
                label=self.classifier.classes[batch.predicted[i]],
                confidence=float(batch.confidence[i]),
                score=float(values[i]),
                is_ood=None if self.threshold is None else bool(not values[i] >= self.threshold),
            )
            for i, item in enumerate(batch.items)
        ]

    def _adapt(self, memory: Memory, batches: Iterator[Scored]) -> Iterator[Scored]:
        for batch in batches:
            values: npt.NDArray[np.float64] = np.zeros(0)
            if batch.items:
                with torch.inference_mode():
                    features = torch.from_numpy(batch.features).to(self.classifier.model.device)
                    outputs = self.classifier(Inputs(features))
                    scores = memory.judge(outputs.similarities.float(), outputs.features.float())
                values = scores.double().cpu().numpy()
            yield replace(batch, values={self.adapter.spec: values}, features=None)


def _regroup(batches: Iterator[Scored], size: int) -> Iterator[Scored]:
    """The same images, `size` at a time; unreadable ones go with the first of those that come after them."""
    held: list[Scored] = []
    for batch in batches:
        held.append(batch)
        while sum(len(part.items) for part in held) >= size:
            whole = _join(held)
            yield whole.take(np.arange(size))
            held = [replace(whole.take(np.arange(size, len(whole.items))), unreadable=[])]
    if held and (any(part.items for part in held) or any(part.unreadable for part in held)):
        yield _join(held)


def _join(parts: list[Scored]) -> Scored:
    """Several batches as one."""
    return replace(
        parts[0],
        items=[item for part in parts for item in part.items],
        unreadable=[image for part in parts for image in part.unreadable],
        predicted=np.concatenate([part.predicted for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        features=np.concatenate([part.features for part in parts if part.features is not None]),
        similarity=np.concatenate([part.similarity for part in parts if part.similarity is not None]),
    )
