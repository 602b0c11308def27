"""The work behind the service: threads decode images, and towers encode them in batches across requests."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import torch
from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.classes import check_classes, check_templates
from deltaenergy.core.needs import Need
from deltaenergy.data.decode import UnreadableImage, open_header, opened, reasons
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.calibration import Calibration
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.saved import version_of
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import EncodedBatch, check_features, encode_batch
from deltaenergy.monitor import Monitor
from deltaenergy.monitor.state import state_of, write_state
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scores.registry import DEFAULT_SCORE, make_score
from deltaenergy.scoring import Scored, score_encoded
from deltaenergy.serve.batcher import Batcher
from deltaenergy.serve.metrics import Metrics
from deltaenergy.serve.schemas import ClassConfidence, DetectorInfo, ImageAnswer

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.serve.server import Limits

DECODE_THREADS = 4
MOST_WORKERS = 4
# How much of a monitor's state a killed process may lose.
SAVE_SECONDS = 10.0
Pixels: TypeAlias = "npt.NDArray[np.float32]"


@dataclass(frozen=True, eq=False)
class Predictor:
    """A detector of the service, or class names of a request, which have no name. Compared by identity."""

    classifier: Classifier
    scorer: Scorer
    detector: Detector | None = None
    name: str | None = None
    version: str | None = None
    needs: frozenset[Need] = field(init=False)
    # A sentence in every answer, which takes a millisecond to compute.
    guarantee: str | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", self.classifier.needs_to_predict | self.scorer.score.needs)
        object.__setattr__(self, "guarantee", guarantee_of(self.detector))

    @classmethod
    def of_detector(cls, name: str, detector: Detector) -> Predictor:
        """A calibrated detector under a name; batch-dependent detectors are refused."""
        if detector.classifier.batch_dependent:
            raise InputError(
                f"The detector {name!r} classifies an image by the others of its batch (its classifier is "
                "batch-dependent), so answers would depend on other requests. Tune it with serve=train."
            )
        return cls(detector.classifier, detector.prepare().scorer, detector, name, version_of(detector))

    @property
    def model(self) -> TowerModel | None:
        """The model that encodes images; None if there are only stored features."""
        model = self.classifier.model
        return model if isinstance(model, TowerModel) else None

    @property
    def patches(self) -> bool:
        return bool(self.needs & {Need.PATCHES, Need.STATES})

    @property
    def takes_features(self) -> bool:
        return not (self.patches or Need.PIXELS in self.needs or self.classifier.prompts_images)

    @property
    def one_threshold(self) -> Calibration | None:
        """The calibration, if a single threshold decides for every image."""
        known = None if self.detector is None else self.detector.calibration
        return known if isinstance(known, Calibration) and known.folds is None and known.groups is None else None

    def predict(self, batch: EncodedBatch, top_k: Sequence[int]) -> list[ImageAnswer]:
        """Answers for encoded images, each with its own number of closest classes."""
        scored, similarities = score_encoded(self.classifier, [self.scorer], batch)
        scale, classes = self.classifier.model.logit_scale, self.classifier.classes
        shares = torch.softmax(similarities.double() * scale, dim=1)
        # Class names with a chosen score have no threshold.
        detector = self.detector or Detector(self.classifier, self.scorer.score)
        own, answers = detector.class_thresholds, []
        best = torch.topk(similarities, min(max(top_k), len(classes)))
        closest = zip(top_k, best.indices.tolist(), shares.gather(1, best.indices).tolist(), best.values.tolist())
        for verdict, (count, *found) in zip(detector.judge(scored), closest):
            top = [
                ClassConfidence(label=classes[k], confidence=share, similarity=similarity)
                for k, share, similarity in list(zip(*found))[:count]
            ]
            row = verdict.to_dict() | {"score": verdict.score if math.isfinite(verdict.score) else None}
            threshold = own.get(verdict.label, detector.threshold)
            answers.append(ImageAnswer(**row, threshold=threshold, top=top, detector=self.name, version=self.version))
        return answers

    def predict_features(self, features: list[list[float]], top_k: int) -> list[ImageAnswer]:
        if not self.takes_features:
            raise InputError(f"The detector {self.name!r} needs more than features: send images.")
        widths = {len(row) for row in features}
        if len(widths) > 1:
            raise InputError(f"features has rows of {min(widths)} and of {max(widths)} numbers.")
        rows = check_features(torch.tensor(features, dtype=torch.float32), self.classifier.model)
        items = [ImageItem(str(i), b"") for i in range(len(rows))]
        batch = EncodedBatch(items, None, rows.to(self.classifier.model.device), None, [])
        return self.predict(batch, [top_k] * len(rows))

    def calibrated(self, known: Sequence[float], keep: float) -> Detector:
        """A detector whose threshold is set on these scores of known images."""
        detector = Detector(self.classifier, self.scorer.score, state=self.scorer.state)
        items, count = [ImageItem(str(i), b"") for i in range(len(known))], len(known)
        values = {self.scorer.spec: np.array(known, np.float64)}
        scored = Scored(items, [], np.zeros((count, 1), np.int64), np.ones((count, 1), np.float32), values)
        return detector.calibrate_scored(scored, keep)

    def info(self) -> DetectorInfo:
        """The public description of a detector, without paths of the server."""
        assert self.detector is not None and self.name is not None and self.version is not None
        return DetectorInfo(
            name=self.name,
            version=self.version,
            classes=list(self.classifier.classes),
            score=self.scorer.spec,
            method=self.classifier.method.spec,
            threshold=self.detector.threshold,
            keep=None if self.detector.guarantee is None else self.detector.guarantee.keep,
            guarantee=self.guarantee,
            calibration_images=len(self.detector.calibration_scores),
            feature_dim=self.classifier.model.feature_dim,
            takes_features=self.takes_features,
            model_fingerprint=self.classifier.model.fingerprint,
        )


def guarantee_of(detector: Detector | None) -> str | None:
    return None if detector is None or detector.guarantee is None else str(detector.guarantee)


def at_rank(known: Calibration, rank: int) -> Calibration:
    """The same scores with s_(rank) as the threshold, which keeps 1 − rank / (n + 1) on average, rounded down."""
    count = len(known.scores)
    if not 1 <= rank <= count:
        raise InputError(f"rank must be from 1 to {count:,}, the number of known images, got {rank:,}.")
    # With as many digits as n + 1 has, the rounded share has the same rank.
    unit = 10 ** len(str(count + 1))
    keep = math.floor((1 - rank / (count + 1)) * unit) / unit
    return replace(known, guarantee=replace(known.guarantee, keep=keep, confidence=None))


def without_images(spec: str) -> Score:
    """A score for class names of a request: not fitted, and without further words, unless it is the default score.

    The words of the default score are encoded once, before the service listens. Other scores would take minutes, or
    read files that a request names.
    """
    score = make_score(spec)
    further = Need.TEXTS in score.needs and score.spec != DEFAULT_SCORE
    if further or score.missing is not None or score.own_to is not None or Need.ID_DATA in score.needs:
        raise InputError(
            f"score: {spec[:100]!r} is not available for class names of a request: it is fitted on known images, or "
            "encodes many further words. Calibrate a detector with it."
        )
    return score


class Cores:
    """The machine's cores, shared by batches that run at the same time.

    Two batches on one core each finish sooner than one after the other on two cores: threads of one matrix product wait
    for each other, and longer on a machine that also talks to clients. A single batch still gets all cores.
    """

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._running = 0
        self._lock = threading.Lock()

    def workers(self, device: str = "cpu") -> int:
        """Number of batches at a time; devices other than the CPU run one after the other."""
        return min(self._threads, MOST_WORKERS) if device == "cpu" else 1

    @contextmanager
    def share(self) -> Iterator[int]:
        """While held, torch uses this thread's share of the cores."""
        with self._lock:
            self._running += 1
            threads = max(1, self._threads // self._running)
        try:
            # Applies to this thread only; others keep their own number.
            torch.set_num_threads(threads)
            yield threads
        finally:
            with self._lock:
                self._running -= 1


class Watch:
    """One detector's monitor. Only the event loop calls `look`; the state file is held by the monitor's owner."""

    def __init__(self, name: str, monitor: Monitor, path: Path, metrics: Metrics) -> None:
        self.name, self.monitor, self.path, self._metrics = name, monitor, path, metrics
        self._saved = time.monotonic()
        metrics.monitor_bound.labels(name).set(monitor.bound)
        metrics.monitor_bar.labels(name).set(monitor.alarm_level / math.log(10))
        self._show()

    def look(self, answers: Sequence[ImageAnswer]) -> bool:
        """Observe those that are verdicts; returns whether there were any."""
        found = [answer for answer in answers if answer.verdict is not None]
        if not found:
            return False
        ids, labels = [answer.path for answer in found], [answer.label or "" for answer in found]
        # JSON has no infinity: a missing score of a kept image was infinite.
        undefined = [math.nan if answer.is_ood else math.inf for answer in found]
        scores = [answer.score if answer.score is not None else other for answer, other in zip(found, undefined)]
        # Clients choose the names: they must not be used as paths on this disk.
        self.monitor.observe(ids, labels, scores, files=False)
        self._show()
        return True

    def save_soon(self, executor: Executor) -> None:
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._saved = time.monotonic()
            executor.submit(self._write, state_of(self.monitor))

    def save(self) -> None:
        self._write(state_of(self.monitor))

    def _write(self, state: dict[str, object]) -> None:
        try:
            write_state(self.path, state)
        except (OSError, DeltaEnergyError) as error:
            # Answers matter more; the next save may succeed, and the last save reports its own failure.
            logging.getLogger("deltaenergy.serve").warning("The monitor's state could not be written: %s", error)

    def _show(self) -> None:
        status = self.monitor.status
        self._metrics.monitored.labels(self.name).set(status.images)
        self._metrics.monitor_rate.labels(self.name).set(status.rate)
        self._metrics.monitor_changed.labels(self.name).set(int(status.changed))
        for test, evidence in status.evidence.items():
            self._metrics.monitor_evidence.labels(self.name, test).set(evidence)


@dataclass(frozen=True, eq=False)
class Job:
    """A decoded image that waits for the tower."""

    predictor: Predictor
    id: str
    pixels: Pixels
    top_k: int


@dataclass(eq=False)
class Engine:
    """Detectors by name, a model for class names of requests, and the worker threads."""

    detectors: dict[str, Predictor]
    model: TowerModel | None
    limits: Limits
    metrics: Metrics
    watches: dict[str, Watch] = field(default_factory=dict)
    under_way: int = 0
    _batchers: dict[tuple[str, bool], Batcher[Job, ImageAnswer]] = field(default_factory=dict)
    _lists: OrderedDict[tuple[Any, ...], Predictor] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._decoders = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="decode")
        self._cores = Cores()
        self._tower = ThreadPoolExecutor(self._cores.workers(), thread_name_prefix="tower")
        # One thread: class lists and calibrations are made one after the other.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="background")

    def detector(self, name: str | None) -> Predictor:
        """A detector by its name; without a name, the only detector."""
        if name is None and len(self.detectors) == 1:
            return next(iter(self.detectors.values()))
        if name is None or name not in self.detectors:
            wrong = "detector is missing" if name is None else f"There is no detector {name[:100]!r}"
            raise HTTPException(404, f"{wrong}. There are: {', '.join(self.detectors) or 'none'}.")
        return self.detectors[name]

    async def predict(self, predictor: Predictor, images: Sequence[tuple[str, bytes]], top_k: int) -> list[ImageAnswer]:
        with self._queued(len(images)):
            return list(await asyncio.gather(*(self._one(predictor, name, data, top_k) for name, data in images)))

    async def with_pixels(self, predictor: Predictor, data: bytes, work: Callable[[Pixels], Any]) -> Any:
        """Decode one image and pass it to `work`, in the background. It counts as an image in progress."""
        model = predictor.model
        if model is None:
            raise InputError("This detector has no image encoder, which it would need for an image.")
        with self._queued(1):
            try:
                pixels = await self._decode(data, model)
            except UnreadableImage as error:
                raise InputError(f"files: the image cannot be read: {error}.") from None
            return await self.run_in_background(work, pixels)

    async def predict_features(self, predictor: Predictor, rows: list[list[float]], top_k: int) -> list[ImageAnswer]:
        answers: list[ImageAnswer] = await self.run_in_background(predictor.predict_features, rows, top_k)
        self._count(answers)
        return answers

    async def run_in_background(self, work: Any, *arguments: Any) -> Any:
        """Run `work` in its own thread, one at a time, next to the batches."""

        def run() -> Any:
            with self._cores.share():
                return work(*arguments)

        return await asyncio.get_running_loop().run_in_executor(self._background, run)

    @contextmanager
    def _queued(self, images: int) -> Iterator[None]:
        """Count images as in progress, or refuse them if the queue is full."""
        if self.under_way + images > self.limits.queue:
            busy = "The service is busy with other images. Try again shortly."
            raise HTTPException(429, busy, headers={"Retry-After": "1"})
        self.under_way += images
        self.metrics.under_way.set(self.under_way)
        try:
            yield
        finally:
            self.under_way -= images
            self.metrics.under_way.set(self.under_way)

    async def _decode(self, data: bytes, model: TowerModel) -> Pixels:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoders, decode, data, model, self.limits.pixels)
        except UnreadableImage:
            self.metrics.unreadable.inc()
            raise

    async def _one(self, predictor: Predictor, name: str, data: bytes, top_k: int) -> ImageAnswer:
        model = predictor.model
        if model is None:
            return ImageAnswer(path=name, error="this detector has no image encoder: send features")
        try:
            pixels = await self._decode(data, model)
        except UnreadableImage as error:
            return ImageAnswer(path=name, detector=predictor.name, version=predictor.version, error=str(error))
        answer = await self._batcher(predictor, model).submit(Job(predictor, name, pixels, top_k))
        self._count([answer])
        return answer

    def _count(self, answers: Sequence[ImageAnswer]) -> None:
        for answer in answers:
            if answer.verdict is not None:
                self.metrics.verdicts.labels(answer.detector, answer.verdict).inc()
        for name, watch in self.watches.items():
            if watch.look([answer for answer in answers if answer.detector == name]):
                watch.save_soon(self._decoders)

    def _batcher(self, predictor: Predictor, model: TowerModel) -> Batcher[Job, ImageAnswer]:
        key = model.fingerprint, predictor.patches
        if key not in self._batchers:
            wait, observe = self.limits.wait_ms / 1000, self.metrics.batch_sizes.observe
            workers = self._cores.workers(model.device.type)
            self._batchers[key] = Batcher(self._predict_batch, self._tower, self.limits.batch, wait, workers, observe)
        return self._batchers[key]

    def _predict_batch(self, jobs: Sequence[Job]) -> list[ImageAnswer]:
        with self._cores.share():
            return encode_and_predict(jobs)

    def class_list(self, classes: Sequence[str], template: str | None, score: str | None) -> Predictor:
        """A classifier for class names of a request; the last few lists are cached. Runs the text encoder."""
        if self.model is None:
            raise InputError("classes: this service has no model for class names of a request. Use its detectors.")
        if len(classes) > self.limits.classes:
            raise InputError(f"classes has {len(classes):,} names; the limit is {self.limits.classes:,}.")
        long = next((name for name in classes if len(name) > self.limits.name_length), None)
        if long is not None:
            raise InputError(f"classes: {long[:40]!r}… has more than {self.limits.name_length} characters.")
        chosen = without_images(score or DEFAULT_SCORE)
        key = tuple(classes), template, chosen.spec
        if key in self._lists:
            self._lists.move_to_end(key)
            return self._lists[key]
        names, templates = check_classes(classes, warn=False), check_templates(template, None)
        if template is not None and Need.TEXTS in chosen.needs:
            raise InputError(
                f"template: the words of the score {chosen.spec} are encoded in the default template only. Pass "
                "another score, such as mcm, or remove the template."
            )
        classifier = ZeroShotClassifier(self.model, names, templates=templates)
        if score is None:  # with the threshold from class names
            detector = Detector.from_names(classifier)
            predictor = Predictor(classifier, detector.scorer, detector)
        else:
            predictor = Predictor(classifier, chosen.bind(classifier))
        self._lists[key] = predictor
        while len(self._lists) > self.limits.class_lists:
            self._lists.popitem(last=False)
        return predictor

    def prepare(self) -> None:
        """Encode the words of the default score, so the first request with class names need not wait for them."""
        if self.model is not None and self.model.text is not None:
            self.class_list(["thing"], None, None)

    async def close(self) -> None:
        for batcher in self._batchers.values():
            await batcher.close()
        for pool in (self._decoders, self._tower, self._background):
            pool.shutdown()
        for watch in self.watches.values():
            watch.save()


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


TheEngine = Annotated[Engine, Depends(engine_of)]


def decode(data: bytes, model: TowerModel, most_pixels: int) -> Pixels:
    """Bytes -> the tower's input. The size in the header is checked before anything is decoded."""
    with reasons():
        header = open_header(io.BytesIO(data))
        if header.width * header.height > most_pixels:
            raise UnreadableImage(
                f"it has {header.width:,} × {header.height:,} pixels; the limit is {most_pixels / 1e6:g} megapixels"
            )
    with opened(data) as image:
        return np.asarray(model.preprocessing(image))


def encode(predictor: Predictor, images: Sequence[tuple[str, Pixels]]) -> EncodedBatch:
    """One pass of the tower for decoded images with their names."""
    assert predictor.model is not None
    return encode_batch(predictor.model, predictor.patches, [(ImageItem(name, b""), pixels) for name, pixels in images])


def encode_and_predict(jobs: Sequence[Job]) -> list[ImageAnswer]:
    """Encode all images in one pass, then let each predictor answer for its own."""
    whole = encode(jobs[0].predictor, [(job.id, job.pixels) for job in jobs])
    assert whole.pixels is not None
    answers: dict[int, ImageAnswer] = {}
    for predictor in dict.fromkeys(job.predictor for job in jobs):
        rows = [i for i, job in enumerate(jobs) if job.predictor is predictor]
        patches = None if whole.patches is None else whole.patches[rows]
        items = [whole.items[i] for i in rows]
        part = EncodedBatch(items, whole.pixels[rows], whole.features[rows], patches, [])
        answers.update(zip(rows, predictor.predict(part, [jobs[i].top_k for i in rows])))
    return [answers[i] for i in range(len(jobs))]
