"""The work behind the service: pictures are decoded by threads, and pass through towers in batches of all requests."""

from __future__ import annotations

import asyncio
import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch

from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.classes import check_classes, check_templates
from deltaenergy.data.decode import UnreadableImage, open_header, opened, reasons
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.scores.registry import make_score
from deltaenergy.serve.schemas import ImageAnswer
from deltaenergy.serve.batcher import Batcher
from deltaenergy.serve.cores import Cores
from deltaenergy.serve.limits import Limits
from deltaenergy.serve.metrics import Metrics
from deltaenergy.serve.targets import Target
from deltaenergy.serve.watching import Watch

if TYPE_CHECKING:
    import numpy.typing as npt

DECODE_THREADS = 4
Pixels: TypeAlias = "npt.NDArray[np.float32]"
Result = TypeVar("Result")


class Busy(Exception):
    """As much as the service takes on is under way."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded image on its way through the tower."""

    target: Target
    id: str
    pixels: npt.NDArray[np.float32]
    top_k: int


@dataclass(eq=False)
class Engine:
    """Detectors by name, a model for class names that come with a request, and the threads that do the work."""

    detectors: dict[str, Target]
    model: TowerModel | None
    default_score: str
    limits: Limits
    metrics: Metrics
    watches: dict[str, Watch] = field(default_factory=dict)
    under_way: int = 0
    _batchers: dict[tuple[str, bool], Batcher[Picture, ImageAnswer]] = field(default_factory=dict)
    _lists: OrderedDict[tuple[Any, ...], Target] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._decoders = ThreadPoolExecutor(DECODE_THREADS, thread_name_prefix="decode")
        self._cores = Cores()
        self._tower = ThreadPoolExecutor(self._cores.workers(), thread_name_prefix="tower")
        # One thread: lists of classes and calibrations are made one after the other.
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")

    def detector(self, name: str | None) -> Target:
        """A detector by its name; without one, the only one there is."""
        if name is None and len(self.detectors) == 1:
            return next(iter(self.detectors.values()))
        if name is None:
            raise KeyError(f"Name one of the detectors: {', '.join(self.detectors) or 'this service has none'}.")
        if name not in self.detectors:
            raise KeyError(f"There is no detector {name[:100]!r}. There are: {', '.join(self.detectors) or 'none'}.")
        return self.detectors[name]

    async def judge(self, target: Target, images: Sequence[tuple[str, bytes]], top_k: int) -> list[ImageAnswer]:
        """Answers in the order of the images. Raises `Busy` if there are more than fit beside those under way."""
        if self.under_way + len(images) > self.limits.queue:
            raise Busy
        self.under_way += len(images)
        self.metrics.under_way.set(self.under_way)
        try:
            return list(await asyncio.gather(*(self._one(target, name, data, top_k) for name, data in images)))
        finally:
            self.under_way -= len(images)
            self.metrics.under_way.set(self.under_way)

    async def with_pixels(self, target: Target, data: bytes, work: Callable[[Pixels], Result]) -> Result:
        """Decode one picture and hand it to `work` beside the batches. It counts as any other that is under way."""
        model = target.model
        if model is None:
            raise InputError("This detector holds no image tower: it has nothing to look at pictures with.")
        if self.under_way >= self.limits.queue:
            raise Busy
        self.under_way += 1
        self.metrics.under_way.set(self.under_way)
        try:
            loop = asyncio.get_running_loop()
            pixels = await loop.run_in_executor(self._decoders, decode, data, model, self.limits.pixels)
            found: Result = await self.aside(work, pixels)
            return found
        except UnreadableImage as error:
            self.metrics.unreadable.inc()
            raise InputError(f"The picture cannot be read: {error}.") from None
        finally:
            self.under_way -= 1
            self.metrics.under_way.set(self.under_way)

    async def judge_features(self, target: Target, features: list[list[float]], top_k: int) -> list[ImageAnswer]:
        """Answers for rows of features, computed beside the towers' batches."""
        answers: list[ImageAnswer] = await self.aside(target.judge_features, features, top_k)
        self._count(answers)
        return answers

    async def aside(self, work: Any, *arguments: Any) -> Any:
        """Run `work` in a thread of its own, one at a time, beside the batches."""

        def run() -> Any:
            with self._cores.share():
                return work(*arguments)

        return await asyncio.get_running_loop().run_in_executor(self._aside, run)

    async def _one(self, target: Target, name: str, data: bytes, top_k: int) -> ImageAnswer:
        model = target.model
        if model is None:
            return ImageAnswer(id=name, error="this detector holds no image tower: send features")
        loop = asyncio.get_running_loop()
        try:
            pixels = await loop.run_in_executor(self._decoders, decode, data, model, self.limits.pixels)
        except UnreadableImage as error:
            self.metrics.unreadable.inc()
            return ImageAnswer(id=name, detector=target.name, version=target.version, error=str(error))
        answer = await self._batcher(target, model).submit(Picture(target, name, pixels, top_k))
        self._count([answer])
        return answer

    def _count(self, answers: Sequence[ImageAnswer]) -> None:
        for answer in answers:
            if answer.verdict is not None:
                self.metrics.verdicts.labels(answer.detector, answer.verdict).inc()
        for name, watch in self.watches.items():
            if watch.look([answer for answer in answers if answer.detector == name]):
                watch.save_soon(self._decoders)

    def _batcher(self, target: Target, model: TowerModel) -> Batcher[Picture, ImageAnswer]:
        key = model.fingerprint, target.patches
        if key not in self._batchers:
            wait, observe = self.limits.wait_ms / 1000, self.metrics.batch_sizes.observe
            workers = self._cores.workers(model.device.type)
            self._batchers[key] = Batcher(self._judge_batch, self._tower, self.limits.batch, wait, workers, observe)
        return self._batchers[key]

    def _judge_batch(self, pictures: Sequence[Picture]) -> list[ImageAnswer]:
        with self._cores.share():
            return encode_and_judge(pictures)

    def class_list(self, classes: Sequence[str], template: str | None, score: str | None) -> Target:
        """A classifier of names that came with a request; the last few lists are kept. Runs the text tower."""
        if self.model is None:
            raise InputError("This service has no model for class names of your own: ask one of its detectors.")
        if len(classes) > self.limits.classes:
            raise InputError(f"classes has {len(classes):,} names, and {self.limits.classes:,} are the most.")
        long = next((name for name in classes if len(name) > self.limits.name_length), None)
        if long is not None:
            raise InputError(f"The class {long[:40]!r}… has more than {self.limits.name_length} characters.")
        chosen = make_score(score or self.default_score)
        key = tuple(classes), template, chosen.spec
        if key in self._lists:
            self._lists.move_to_end(key)
            return self._lists[key]
        check_unfitted(chosen.spec)
        names = check_classes(classes, warn=False)
        classifier = ZeroShotClassifier(self.model, names, templates=check_templates(template, None))
        target = Target(classifier, chosen.bind(classifier))
        self._lists[key] = target
        while len(self._lists) > self.limits.class_lists:
            self._lists.popitem(last=False)
        return target

    async def close(self) -> None:
        """Finish what was accepted."""
        for batcher in self._batchers.values():
            await batcher.close()
        self._decoders.shutdown()
        self._tower.shutdown()
        self._aside.shutdown()
        for watch in self.watches.values():
            watch.save()


def check_unfitted(spec: str) -> None:
    """Refuse a score that must be fitted, or that would encode thousands of words for one request."""
    from deltaenergy.core.needs import Need

    score = make_score(spec)
    if score.missing is not None or score.own_to is not None or score.needs & {Need.ID_DATA, Need.TEXTS}:
        raise InputError(
            f"The score {spec!r} cannot be had for names of a request: it is fitted on known images or learned "
            "beforehand. Calibrate a detector with it."
        )


def decode(data: bytes, model: TowerModel, most_pixels: int) -> npt.NDArray[np.float32]:
    """Bytes -> what the tower takes. The size that the header tells is looked at before anything is decoded."""
    with reasons():
        header = open_header(io.BytesIO(data))
        if header.width * header.height > most_pixels:
            raise UnreadableImage(
                f"it has {header.width:,} × {header.height:,} pixels, and {most_pixels / 1e6:g} megapixels are the most"
            )
    with opened(data) as image:
        return np.asarray(model.preprocessing(image))


def encode_and_judge(pictures: Sequence[Picture]) -> list[ImageAnswer]:
    """One pass of the tower for all, then each target judges its own."""
    first = pictures[0].target
    model = first.model
    assert model is not None
    pixels = torch.from_numpy(np.stack([picture.pixels for picture in pictures])).to(model.device)
    patches: torch.Tensor | None = None
    with torch.inference_mode():
        if first.patches:
            features, patches = model.image_and_patch_features(pixels)
        else:
            features = model.image_features(pixels)
    answers: dict[int, ImageAnswer] = {}
    for target in dict.fromkeys(picture.target for picture in pictures):
        rows = [i for i, picture in enumerate(pictures) if picture.target is target]
        items = [ImageItem(pictures[i].id, b"") for i in rows]
        batch = EncodedBatch(items, pixels[rows], features[rows], None if patches is None else patches[rows], [])
        answers.update(zip(rows, target.judge(batch, [pictures[i].top_k for i in rows])))
    return [answers[i] for i in range(len(pictures))]
