"""`score`, `calibrate` and `adapt`: from images and class names, or a detector, to verdicts in one call.

    de.score("photos/", "detector/")                                    # a detector's folder, or a Detector
    de.score("photos/", ["dog", "cat"], known="good/")                  # class names on the bundled model
    de.score("photos/", de.ClassNames("dog,cat", model="openai/clip-vit-base-patch16"))

Arguments, images and the score are checked before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from deltaenergy.core.needs import Lack
from deltaenergy.core.progress import stage
from deltaenergy.data.corruptions import corruption_kinds
from deltaenergy.data.items import Unreadable
from deltaenergy.detector.adaptive import AdaptiveDetector
from deltaenergy.detector.calibration import check_calibration
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.fiftyone import names_fiftyone
from deltaenergy.detector.opening import By, DetectorSource, check_detector_folder
from deltaenergy.detector.verdict import verdict_columns
from deltaenergy.detector.verdict_files import check_table, write_table
from deltaenergy.detector.verdicts import Verdicts, VerdictStream
from deltaenergy.errors import InputError
from deltaenergy.files import keeping_result
from deltaenergy.models.on import On
from deltaenergy.scores.adaptive import make_adapter
from deltaenergy.scores.availability import check_runnable, unlabelled
from deltaenergy.scores.base import Score
from deltaenergy.scores.delta_energy_words import DeltaEnergyWords
from deltaenergy.source import Source, list_images
from deltaenergy.stats.thresholds import check_fdr, check_keep

Judge = Detector | AdaptiveDetector


class Scoring(VerdictStream):
    """The verdicts of `score` and `adapt`, computed as they are read; the first read loads the model.

    Iterate over it once, or `collect` it into a table, or `write` it to a file.

    Attributes:
        given: the images as passed.
        images: the same, listed.
        has_threshold: whether there are verdicts, as far as known before the model is loaded.
        fdr: the false discovery rate that replaces the threshold, if any.
    """

    def __init__(
        self,
        given: Any,
        images: Source,
        load: Callable[[], Judge],
        judge: Callable[[Scoring], Iterator[Verdicts]],
        *,
        has_threshold: bool,
        top_k: int = 1,
        fdr: float | None = None,
    ) -> None:
        self.given, self.images, self.has_threshold, self.fdr = given, images, has_threshold, fdr
        self._load, self._top_k = load, top_k
        super().__init__(judge(self))

    @cached_property
    def detector(self) -> Judge:
        """The detector; loaded on first use."""
        return self._load()

    @property
    def classes(self) -> Sequence[str]:
        """The class names."""
        return self.detector.classifier.classes

    @property
    def columns(self) -> list[str]:
        """The columns of the table."""
        return verdict_columns(min(self._top_k, len(self.classes)))

    @property
    def unreadable(self) -> list[Unreadable]:
        """Unreadable images and reasons, after those of the known images."""
        known = self.detector.unreadable if isinstance(self.detector, Detector) else []
        return [*known, *super().unreadable]

    def collect(self, parts: Iterable[Verdicts] | None = None) -> Verdicts:
        """All verdicts as a table, with the images themselves in `items`; `parts` are batches that were read before."""
        whole = Verdicts.concat(self.batches() if parts is None else parts, keep_items=True)
        return replace(whole, unreadable=self.unreadable)

    def write(self, path: str | Path) -> int:
        """Write the table to FILE.csv, .jsonl, .parquet or .xlsx as rows come, or to a folder named fiftyone.

        A file may also be a URL in cloud storage. Returns the number of images.
        """
        check_table(path)
        if names_fiftyone(path):
            found = self.collect()
            keeping_result(path, found.to_fiftyone, what="The table")
            return len(found)
        return write_table(path, (part.rows() for part in self.batches()), self.columns)


def score(
    images: Any,
    by: By,
    *,
    score: str | Score | None = None,
    known: Any = None,
    keep: float | None = None,
    fdr: float | None = None,
    top_k: int = 1,
    on: str | On = "auto",
) -> Scoring:
    """Classify images, and reject those of none of the classes.

    Args:
        images: any kind of image input.
        by: a detector or its folder, which has a threshold; or a classifier, or class names.
        score: for a classifier or class names; by default `delta-energy+words`.
        known: known images to set a threshold with, if `by` has none. Without them the threshold comes from class names
            and guarantees nothing (`Detector.from_names`), or there are no verdicts if the score does not allow that.
        keep: share of new known images to keep, on average; 0.95 by default.
        fdr: expected share of known images among the rejected, at most; replaces the threshold. Verdicts then come
            after all images have been scored.
        top_k: number of closest classes to report per image.
        on: where to run the model, and images per batch: `"cuda:1,bf16,batch=256"` (`deltaenergy.models.on`).
    """
    source = DetectorSource.of(by, on, "score")
    check_fdr(fdr)
    check_keep(0.95 if keep is None else keep)
    if top_k < 1:
        raise InputError(f"`top_k` must be at least 1, got {top_k!r}.")
    for name, value, brings in (
        ("score", score, source.is_detector),
        ("known", known, source.has_threshold),
        ("keep", keep, source.has_threshold),
    ):
        if value is not None and brings:
            raise InputError(f"`{name}` is part of the detector: remove one of the two.")
    for name, value in (("fdr", fdr), ("keep", keep)):
        if value is not None and known is None and not source.has_threshold:
            raise InputError(f"`{name}` needs known images: pass `known`, or a calibrated detector as `by`.")
    listed = list_images(images)
    known_images = None if known is None else list_images(known, hold=True)
    asked = None if source.is_detector else source.score(score)
    if asked is not None:
        nothing = Lack(
            "no known images", "it is fitted on known images: pass `known`, or a calibrated detector as `by`."
        )
        given = source.given([listed, *([] if known_images is None else [known_images])])
        lack = {"id_data": nothing} if known_images is None else {"labels": unlabelled(known_images)}
        check_runnable([asked], given.without(**lack))

    by_names = known is None and asked is not None

    def load() -> Detector:
        detector = source.named_detector(None if score is None else asked) if by_names else source.detector(asked)
        if known_images is not None:
            if detector is source.by:  # the caller's detector stays unchanged
                detector = Detector(detector.classifier, detector.score, state=detector.score_state)
            with stage("Calibrating") as progress:
                detector.calibrate(
                    known_images, 0.95 if keep is None else keep, batch_size=source.on.batch_size, progress=progress
                )
        if fdr is not None:
            detector.check_controls(fdr)
        return detector

    def judge(scoring: Scoring) -> Iterator[Verdicts]:
        detector = scoring.detector
        assert isinstance(detector, Detector)
        with stage("Scoring") as progress:
            yield from detector.batches(
                listed, fdr=fdr, top_k=top_k, batch_size=source.on.batch_size, progress=progress
            )

    has_threshold = source.has_threshold or known is not None or isinstance(asked, DeltaEnergyWords)
    return Scoring(images, listed, load, judge, has_threshold=has_threshold, top_k=top_k, fdr=fdr)


def adapt(
    images: Any, by: By, method: str = "adaneg", *, known: Any = None, keep: float = 0.95, on: str | On = "auto"
) -> Scoring:
    """Classify images in their order, with a memory of those that came before (`AdaptiveDetector`).

    Verdicts depend on that order, and there are no p-values.

    Args:
        images: in order of arrival.
        by: a classifier, or class names.
        method: `adaneg` or `tanl`, optionally with parameters.
        known: known images to set a threshold with; without them there are no verdicts.
        keep: share of the known images to keep.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "adapt")
    check_keep(keep)
    adapter = make_adapter(method)
    if source.is_detector:
        raise InputError("adapt has its own score and threshold: pass a classifier or class names as `by`.")
    listed, known_images = list_images(images), None if known is None else list_images(known, hold=True)

    def load() -> AdaptiveDetector:
        detector = AdaptiveDetector(source.classifier(), adapter)
        with stage("Preparing the adapter") as progress:
            detector.prepare(progress)
        if known_images is not None:
            with stage("Calibrating") as progress:
                detector.calibrate(known_images, keep, batch_size=source.on.batch_size, progress=progress)
        return detector

    def judge(scoring: Scoring) -> Iterator[Verdicts]:
        detector = scoring.detector
        with stage("Scoring") as progress:
            yield from detector.stream(listed, batch_size=source.on.batch_size, progress=progress).batches()

    return Scoring(images, listed, load, judge, has_threshold=known is not None)


def calibrate(
    images: Any,
    by: By,
    out: str | Path | None = None,
    *,
    score: str | Score | None = None,
    keep: float = 0.95,
    confidence: float | None = None,
    by_class: bool = False,
    keep_images: bool = False,
    tolerate: str | Sequence[str] = (),
    overwrite: bool = False,
    on: str | On = "auto",
) -> Detector:
    """Set the threshold of a detector on known images, and save it in the folder `out` if there is one.

    Args:
        images: known images.
        by: class names, a classifier, or a detector or its folder, whose classifier gets a new threshold.
        out: the detector's folder.
        score: by default that of the detector, or `delta-energy+words`.
        keep: share of new known images to keep.
        confidence: keep at least `keep` with this confidence, such as 0.9, instead of on average.
        by_class: a separate threshold for each class that has enough images.
        keep_images: store features and thumbnails of the images in the detector, for `explain`.
        tolerate: corruptions to tolerate, such as `"blur,noise,jpeg"`; fewer unknown images are then rejected.
        overwrite: replace a detector in `out`.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "calibrate")
    check_calibration(keep, confidence, by_class=by_class)
    kinds = corruption_kinds(tolerate) if tolerate else ()
    if out is not None:
        check_detector_folder(out, overwrite)
    listed = list_images(images, hold=True)
    if by_class and unlabelled(listed) is not None:
        raise InputError("`by_class` needs the class of each image: pass a folder with one subfolder per class.")
    asked = None if score is None and source.is_detector else source.score(score)
    if asked is not None:
        check_runnable([asked], source.given([listed]).without(labels=unlabelled(listed)))
    loaded = source.detector(asked)
    detector = Detector(loaded.classifier, asked or loaded.score)
    with stage("Preparing the score") as progress:
        detector.prepare(progress)
    with stage("Calibrating") as progress:
        detector.calibrate(
            listed,
            keep,
            confidence,
            by_class=by_class,
            keep_images=keep_images,
            tolerate=kinds,
            batch_size=source.on.batch_size,
            progress=progress,
        )
    if out is not None:
        keeping_result(out, detector.save, what="The detector")
    return detector


def no_threshold(who: str) -> InputError:
    """The error of calls that need verdicts."""
    return InputError(f"{who} needs a threshold: pass `known`, or a calibrated detector as `by`.")
