"""Open what a user passes to classify with: a detector or its folder, a classifier, or class names.

Every public call accepts one of these as `by`, and where to run the model as `on`. Both are checked at once; loading
comes after all other checks, so a mistyped path fails in the first second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from deltaenergy.classifiers.base import Classifier, check_classifier
from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.classes import check_classes, check_templates, read_classes
from deltaenergy.core.progress import stage
from deltaenergy.core.specs import split
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.saved import HUB, RECORD
from deltaenergy.errors import InputError
from deltaenergy.files import check_writable
from deltaenergy.models.base import Model
from deltaenergy.models.on import On
from deltaenergy.scores.availability import ALL, Given, closed_tower
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import DEFAULT_SCORE, default_score, make_score
from deltaenergy.source import Source


@dataclass(frozen=True)
class ClassNames:
    """Class names for a zero-shot classifier, on a model that is loaded on demand.

    Args:
        classes: a list, one string with commas, or a text file with one name per line. Optional with known images in
            class folders, which name the classes.
        model: its name or folder, or the model itself.
        template: a prompt with {} for the class name, or several to average.
        calibration_images: for int8 on OpenVINO, as in `load_model`.
    """

    classes: str | Sequence[str] | None = None
    model: str | Path | Model = "lite"
    template: str | Sequence[str] | None = None
    calibration_images: Any = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            names = read_classes(self.classes) if isinstance(self.classes, str) else self.classes
            object.__setattr__(self, "classes", check_classes(names, warn=False))
        check_templates(None, self.templates)

    @property
    def templates(self) -> list[str] | None:
        """The prompts; None for the default."""
        return [self.template] if isinstance(self.template, str) else list(self.template or ()) or None


By: TypeAlias = Detector | Classifier | ClassNames | Sequence[str] | str | Path


@dataclass(frozen=True)
class DetectorSource:
    """`by` and `on` of a call, checked; loaded by `detector` or `classifier`."""

    by: Detector | Classifier | ClassNames | str | Path
    on: On

    @classmethod
    def of(cls, by: By, on: str | On, who: str) -> DetectorSource:
        """Raises `InputError` for an invalid `by` or `on`."""
        on = On.of(on)
        if isinstance(by, Sequence) and not isinstance(by, str):
            by = ClassNames(list(by))
        if isinstance(by, str | Path):
            _check_folder(by)
        elif isinstance(by, ClassNames):
            on.check(by.calibration_images)
        elif not isinstance(by, Detector):
            check_classifier(by, who)
        loaded = by.model if isinstance(by, ClassNames) else by
        if on.names_a_place and not isinstance(loaded, str | Path):
            raise InputError(
                f"`on` says where to load a model, and this {type(loaded).__name__} is already loaded: pass only "
                "batch=N."
            )
        return cls(by, on)

    @property
    def is_detector(self) -> bool:
        """Whether it has its own score, and may have a threshold."""
        return isinstance(self.by, Detector | str | Path)

    @property
    def has_threshold(self) -> bool:
        """Whether it is a calibrated detector, as far as known before loading."""
        return self.is_detector and not (isinstance(self.by, Detector) and self.by.calibration is None)

    def given(self, images: Iterable[Source]) -> Given:
        """What scores can use, as far as known before a model is loaded."""
        if isinstance(self.by, Detector | Classifier):
            return Given.of(images, self.by.classifier if isinstance(self.by, Detector) else self.by)
        model = self.by.model if isinstance(self.by, ClassNames) else None
        if isinstance(model, Model):
            return Given.of(images, model=model)
        return Given.of(images).without(pixels=closed_tower(self.on.backend, self.on.precision))

    def score(self, score: str | Score | None) -> Score:
        """The requested score, or the default of a classifier that is not loaded yet."""
        model = self.by.model if isinstance(self.by, ClassNames | Classifier) else None
        default = default_score(model) if isinstance(model, Model) else DEFAULT_SCORE
        return one_score(default if score is None else score)

    def detector(self, score: Score | None = None) -> Detector:
        """The detector, or a new detector of the classifier with `score`; its words are encoded."""
        if isinstance(self.by, str | Path):
            with stage("Loading the detector"):
                made = Detector.load(self.by, device=self.on.device)
            self.on.check_made_with(made.classifier.base_model, str(self.by))
        else:
            made = self.by if isinstance(self.by, Detector) else Detector(self.classifier(), score)
        with stage("Preparing the score") as progress:
            return made.prepare(progress)

    def named_detector(self, score: Score | None, classifier: Classifier | None = None) -> Detector:
        """A detector with a threshold from class names, or without a threshold and with a warning."""
        classifier = classifier or self.classifier()
        with stage("Preparing the score") as progress:
            try:
                return Detector.from_names(classifier, score, progress=progress)
            except InputError as error:
                warnings.warn(f"There are no verdicts: {error}", stacklevel=2)
                return Detector(classifier, score).prepare(progress)

    def classifier(self, folders: Callable[[], Sequence[str]] | None = None) -> Classifier:
        """The classifier; without class names, `folders` gives the names of class folders."""
        if self.is_detector:
            return self.detector().classifier
        if isinstance(self.by, Classifier):
            return self.by
        assert isinstance(self.by, ClassNames)
        classes = self.by.classes or (folders() if folders is not None else ())
        if not classes:
            instead = "" if folders is None else ", or images in one folder per class"
            raise InputError(f"`classes` is missing: pass class names, such as 'dog,cat'{instead}.")
        model = self.by.model
        if not isinstance(model, Model):
            with stage("Loading the model"):
                model = self.on.load_model(model, self.by.calibration_images)
        with stage("Encoding class names") as progress:
            return ZeroShotClassifier(model, list(classes), templates=self.by.templates, progress=progress)


def one_score(score: str | Score) -> Score:
    """The score; raises if there are several (commas or `all`)."""
    if isinstance(score, str) and (score == ALL or len(split(score, ",", "score")) > 1):
        raise InputError(f"`score` must be one score, got {score!r}. `deltaenergy evaluate` compares several.")
    return make_score(score)


def check_detector_folder(out: str | Path, overwrite: bool) -> None:
    """Raise `InputError` for a folder where a detector cannot be written, or that contains one already."""
    check_writable(out, folder=True, argument="out")
    if (Path(out) / RECORD).exists() and not overwrite:
        raise InputError(f"`out` {out} already contains a detector. Choose another folder, or pass `overwrite=True`.")


def _check_folder(folder: str | Path) -> None:
    if isinstance(folder, str) and folder.startswith(HUB):
        return
    if not Path(folder).is_dir():
        names = " For class names pass a list." if "," in str(folder) else ""
        raise InputError(f"`by` {folder} is not a folder. A detector is a folder that calibrate or tune wrote.{names}")
