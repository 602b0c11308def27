"""Adaptive streams: verdicts that depend on the images that came before.

    detector = AdaptiveDetector(classifier, "adaneg").calibrate(id_images, keep=0.95)
    for verdict in detector.stream(images):
        verdict.label, verdict.score, verdict.is_ood                    # no p-value: see below

Every stream starts with an empty memory, and streams are independent of each other. The threshold is set like that of
`Detector`, on known images scored as a stream. It guarantees nothing for other streams, because scores change as the
memory fills. For the same reason there are no conformal p-values. In another order, images get other verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.core.progress import Progress
from deltaenergy.detector.calibration import check_numbers
from deltaenergy.detector.verdicts import Verdicts, VerdictStream
from deltaenergy.errors import InputError
from deltaenergy.scores.adaptive import Adapter, Memory, make_adapter
from deltaenergy.scoring import NOTHING_SCORED, Scored, stream_scores
from deltaenergy.source import Features, Source, as_source
from deltaenergy.stats.thresholds import check_keep, threshold_of

if TYPE_CHECKING:
    import numpy.typing as npt

# What every output of an adaptive stream says.
ORDER_DEPENDENT = (
    "Order-dependent: scores and verdicts depend on the images that came before, and have no p-values. "
    "Another order gives other results."
)


class AdaptiveDetector:
    """A classifier with an adapter and, once it is calibrated, a threshold.

    Args:
        classifier: zero-shot or tuned; it must take features.
        adapter: a name with optional parameters, such as `"tanl(batch=64)"`, or an `Adapter`.
    """

    def __init__(self, classifier: Classifier, adapter: str | Adapter = "adaneg") -> None:
        self.classifier = classifier
        self.adapter = make_adapter(adapter)
        classifier.check_takes(Features(torch.zeros(0, classifier.model.feature_dim)))
        self.threshold: float | None = None
        self.keep: float | None = None
        self._prepared: dict[str, torch.Tensor] | None = None

    def prepare(self, progress: Progress | None = None) -> AdaptiveDetector:
        """Encode the adapter's words now, not with the first image."""
        if self._prepared is None:
            self._prepared = self.adapter.prepare(self.classifier, progress)
        return self

    def calibrate(
        self, images: Any, keep: float = 0.95, *, batch_size: int = 32, progress: Progress | None = None
    ) -> AdaptiveDetector:
        """Set the threshold that keeps the share `keep` of these known images, scored as a stream."""
        check_keep(keep)
        values = [np.zeros(0)]
        for batch in self.batches(as_source(images), batch_size=batch_size, progress=progress):
            check_numbers(batch, self.adapter.spec)
            values.append(batch.values[self.adapter.spec])
        scores = np.sort(np.concatenate(values))
        if not len(scores):
            raise InputError("calibrate needs at least one readable known image.")
        self.threshold, self.keep = threshold_of(scores, keep, None), keep
        return self

    def stream(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> VerdictStream:
        """Verdicts from a fresh memory, `adapter.batch` images at a time; without a threshold, `is_ood` is None."""
        batches = self.batches(as_source(images), batch_size=batch_size, progress=progress)
        return VerdictStream(self._judge(batch) for batch in chain([NOTHING_SCORED], batches))

    def batches(self, source: Source, *, batch_size: int = 32, progress: Progress | None = None) -> Iterator[Scored]:
        """Results for each `adapter.batch` images in turn, scored with a fresh memory that learns from them."""
        self.prepare()
        assert self._prepared is not None
        found = stream_scores(self.classifier, [], source, batch_size=batch_size, progress=progress)
        return self._adapt(self.adapter.begin(self.classifier, self._prepared), _regroup(found, self.adapter.batch))

    def _judge(self, batch: Scored) -> Verdicts:
        values = batch.values.get(self.adapter.spec, np.zeros(0))
        rejected = None if self.threshold is None else ~(values >= self.threshold)
        return Verdicts.of(batch, self.classifier.classes, self.adapter.spec, rejected)

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
    """The same images, `size` at a time; unreadable images join the next batch."""
    held: list[Scored] = []
    for batch in batches:
        held.append(batch)
        while sum(len(part.items) for part in held) >= size:
            whole = Scored.join(held)
            yield whole.take(np.arange(size))
            held = [replace(whole.take(np.arange(size, len(whole.items))), unreadable=[])]
    if held and (any(part.items for part in held) or any(part.unreadable for part in held)):
        yield Scored.join(held)
