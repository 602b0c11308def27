"""Tune, compare, calibrate and save in one call: what `deltaenergy tune` does.

While it runs, `.deltaenergy-tuning` in the folder has the encoded views and a checkpoint of each method; the same call
resumes from there. In the end it is removed, and the folder has the detector and `deltaenergy-training.json`. Other
files are never touched. An unfinished run of other settings is refused, or, with `overwrite`, removed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.methods import Method, make_method
from deltaenergy.classifiers.zero_shot import ZeroShot
from deltaenergy.core.classes import class_indices, class_names
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import stage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.class_check import warn_of_guesses
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import ClassNames, check_detector_folder, one_score
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.evaluation.tuning_gain import TestImages, TunedCandidate, TuningGain, can_tune_again, measure_gain
from deltaenergy.files import lock_folder, read_json, write_json
from deltaenergy.models.base import Model
from deltaenergy.models.on import On
from deltaenergy.models.precomputed import PrecomputedModel
from deltaenergy.scores.availability import Given, check_runnable, unlabelled
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import DEFAULT_WITHOUT_TEXTS, default_score, make_score
from deltaenergy.source import as_source, labelled_images, load_images
from deltaenergy.stats.thresholds import check_confidence, check_keep
from deltaenergy.training.checkpoints import saving
from deltaenergy.training.loop import EpochLog
from deltaenergy.tuning.prepare import (
    DEFAULT_VIEWS,
    RUN_FOLDER,
    TrainSet,
    TrainSets,
    clear_run_folder,
    encode_test_view,
    method_folder,
    prepare_validation,
)
from deltaenergy.tuning.tune import DEFAULT_METHOD, check_fits, check_tuned_classes, recipes_of, tune
from deltaenergy.tuning.views import CachedViews, Validation

# Unused training images make a valid calibration set; this many are enough.
MAX_HELD_OUT = 1000
# What `auto` tries: methods that train without an encoder.
AUTO = ("centroids", "linear-probe", "lp++", "clap", "tip-adapter-f", "task-res")
WITHOUT_TEXTS = ("centroids", "linear-probe")
# The sample and the training log, next to the detector.
TRAINING = "deltaenergy-training.json"
FORMAT = "deltaenergy training 1"


@dataclass(frozen=True)
class TunedDetector:
    """The detector, what its threshold was set on, whether tuning helped, and the unreadable images.

    `comparison` is None without images to measure on.
    """

    detector: Detector
    calibrated_on: str
    training_images: int
    unreadable: list[Unreadable] = field(default_factory=list)
    comparison: TuningGain | None = None


def tune_detector(
    model: str | Path | Model,
    train: Any,
    out: str | Path,
    method: str | Method | Sequence[str | Method] = DEFAULT_METHOD,
    *,
    classes: str | Sequence[str] | None = None,
    shots: int = 16,
    seed: int = 1,
    val: Any = None,
    id_images: Any = None,
    score: str | Score | None = None,
    keep: float = 0.95,
    confidence: float | None = None,
    domains: bool = False,
    views: int | str = DEFAULT_VIEWS,
    search: bool = False,
    recipe: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    on: str | On = "auto",
    on_epoch: Callable[[EpochLog], None] | None = None,
    on_candidate: Callable[[str, float], None] | None = None,
) -> TunedDetector:
    """Tune a classifier, calibrate a detector with it, save it in the folder `out`, and measure the gain.

    `method` may be several, or "auto" for `AUTO`: all are tuned on the same images, and the one with the largest mean
    of accuracy and AUROC is kept, or zero-shot if none is better (see `measure_gain`). A `model` passed by name is
    loaded after all checks, as `on` says. Without `classes`, the training folders name the classes. The threshold is
    set on `id_images`; by default on `val`, else on unused training images, else, with a warning, on the training
    images. `overwrite` replaces a detector in `out`, or an unfinished run of other settings. Other arguments are as in
    `tune`, `Detector` and `calibrate`.
    """
    on = On.of(on)
    classes = ClassNames(classes).classes
    out, asked, methods = Path(out), None if score is None else one_score(score), _methods(method)
    check_keep(keep)
    check_confidence(confidence)
    for candidate in methods:
        recipes_of(candidate, recipe or {})  # refuses invalid settings before any image is read
    if search and val is None:
        raise InputError("`search` needs validation images: pass `val`.")
    check_detector_folder(out, overwrite)
    _check_training(out)
    items = labelled_images(train, domains, classes or ())
    names = check_tuned_classes(classes or _names_of(items, train))
    held_out = None if id_images is None else load_images(id_images)
    validation_items = None if val is None else labelled_images(val, domains, classes or ())
    to_calibrate = held_out or validation_items or items
    if asked is not None:
        _check_score(asked, methods, to_calibrate)
    if isinstance(model, str | Path):
        with stage("Loading the model"):
            loaded: Model = on.load_model(model)
    else:
        loaded = model
    scored = asked or make_score(default_score(loaded))
    if method == "auto" and isinstance(loaded, PrecomputedModel) and not loaded.classes:
        methods = [candidate for candidate in methods if candidate.name in WITHOUT_TEXTS]
    for candidate in methods:
        check_fits(candidate, loaded, names, shots * len(names), recipe or {})
    _check_score(scored, methods, to_calibrate, loaded)
    run_folder = out / RUN_FOLDER
    with lock_folder(out):
        if overwrite:
            clear_run_folder(run_folder)
        sets = TrainSets(loaded, names, items, shots, seed, views, methods, run_folder)
        prepared = sets.of(methods[0])
        validation = None
        if validation_items is not None:
            with stage("Encoding validation images") as progress:
                validation = prepare_validation(
                    loaded,
                    names,
                    validation_items,
                    needs=frozenset().union(*(candidate.needs_to_validate for candidate in methods)),
                    progress=progress,
                    who=methods[0].name,
                )
        test, unreadable = _test_images(sets, validation)
        tried = []
        for number, candidate in enumerate(methods):
            tuned = tune(
                loaded,
                names,
                sets.of(candidate),
                candidate,
                seed=seed,
                val=validation,
                search=search,
                recipe=recipe if candidate.trains or len(methods) == 1 else None,
                checkpoints=method_folder(run_folder, number, len(methods)),
                on_epoch=on_epoch,
                on_candidate=on_candidate,
            )
            tried.append(TunedCandidate(tuned.method, tuned, sets.of(candidate)))
        comparison = None
        if test is not None:
            with stage("Measuring"):
                # By default with a score that need not mine words again for every part of the classes.
                measure = asked or make_score(DEFAULT_WITHOUT_TEXTS)
                comparison = _compare(loaded, tried, test, measure, seed, recipe or {}, on.batch_size)
        classifier = tried[0].classifier
        if comparison is not None:
            classifier = next(candidate.classifier for candidate in tried if candidate.method.spec == comparison.kept)
            for message in comparison.warnings():
                warnings.warn(message, stacklevel=2)
        detector = Detector(classifier, scored)
        with stage("Calibrating") as progress:
            images, source, trained = _calibration_images(detector, prepared, held_out, test)
            detector.calibrate(images, keep, confidence, trained=trained, batch_size=on.batch_size, progress=progress)
        with saving("The tuned detector", out, f"The finished training is in {run_folder}."):
            record = {"format": FORMAT, "method": classifier.method.spec, **classifier.record}
            record["comparison"] = None if comparison is None else comparison.to_dict()
            write_json(out / TRAINING, {**record, "sample": prepared.sample.record()})
            detector.save(out)
        clear_run_folder(run_folder)
    skipped = {image.id: image for image in (*prepared.unreadable, *unreadable, *detector.unreadable)}
    return TunedDetector(detector, source, len(prepared.sample.items), list(skipped.values()), comparison)


def _methods(given: str | Method | Sequence[str | Method]) -> list[Method]:
    """The requested methods, each once."""
    if given == "auto":
        given = AUTO
    several = [given] if isinstance(given, (str, Method)) else list(given)
    if not several:
        raise InputError("method is empty: name a tuning method, several, or auto.")
    if len(several) > 1 and "auto" in several:
        raise InputError(f"method auto means {', '.join(AUTO)}: pass only auto, or name the methods.")
    return list({method.spec: method for method in map(make_method, several)}.values())


def _check_score(score: Score, methods: Sequence[Method], images: list[ImageItem], model: Model | None = None) -> None:
    """Refuse a score that cannot run on the images for the threshold or with one of the methods, before any work."""
    source = as_source(images)
    lack = unlabelled(source)
    for method in methods:
        check_runnable([score], Given.of([source], model=model, method=method.name).without(labels=lack))


def _test_images(sets: TrainSets, validation: Validation | None) -> tuple[TestImages | None, list[Unreadable]]:
    """What the methods are measured on, best first: validation images, unused images, training images.

    Refuses to choose among methods that cannot be measured, before they are trained.
    """
    if validation is not None:
        labels = validation.labels.cpu().numpy()
        return TestImages(validation.images, labels, validation.features, "validation images"), []
    methods, sample = sets.methods, sets.of(sets.methods[0])
    unreadable: list[Unreadable] = []
    if rest := _not_drawn(sample, sets.items):
        with stage("Encoding unused images") as progress:
            encoded = encode_test_view(sets.model, as_source(rest), progress)
        unreadable = encoded.unreadable
        if encoded.items:
            labels = np.array(class_indices(encoded.items, sets.classes, "Training images"), dtype=np.int64)
            features = torch.from_numpy(encoded.features).to(sets.model.device)
            return TestImages(encoded.items, labels, features, "unused training images"), unreadable
    # The training images are cross-validated: every method is tuned again for each fold.
    once = [method.name for method in methods if not can_tune_again(method, sets.of(method))]
    one_each = len(set(sample.sample.labels)) == len(sample.sample.labels)
    if len(methods) > 1 and (once or one_each):
        why = f"{once[0]} cannot be tuned again for each fold" if once else "there is one image of each class"
        raise InputError(
            f"Comparing several methods needs images that they were not trained on. There are none, and {why}: pass "
            "`val`, or a training folder with more images than `shots`."
        )
    if once or one_each:
        return None, unreadable
    drawn = sets.of(None)
    assert isinstance(drawn.images, CachedViews)
    labels, features = drawn.images.labels.cpu().numpy(), drawn.images.mean_features()
    return TestImages(drawn.sample.items, labels, features, "training images, cross-validated", drawn=True), unreadable


def _compare(
    model: Model,
    tried: list[TunedCandidate],
    test: TestImages,
    score: Score,
    seed: int,
    recipe: Mapping[str, Any],
    batch_size: int,
) -> TuningGain:
    """Compare all with zero-shot, if the model has class texts; zero-shot joins `tried`."""
    kept = tried[0].method.spec if len(tried) == 1 else None
    classifier, train = tried[0].classifier, tried[0].train
    try:
        zero_shot = tune(model, classifier.classes, train, ZeroShot(), seed=seed)
    except InputError:  # neither a text tower nor class vectors
        pass
    else:
        tried.insert(0, TunedCandidate(zero_shot.method, zero_shot, train))
        predicted = zero_shot.similarities(test.features).argmax(axis=1)
        warn_of_guesses(zero_shot.classes, test.labels, predicted, stacklevel=3)
    return measure_gain(model, tried, test, score, kept=kept, seed=seed, recipe=recipe, batch_size=batch_size)


def _names_of(items: list[ImageItem], train: Any) -> list[str]:
    names = class_names(items)
    if not names:
        raise InputError(
            f"`train` {train}: none of the training images has a class. Sort them into one folder per class (and make "
            "the feature store of that folder), or pass a table with a label column."
        )
    return names


def _not_drawn(train: TrainSet, items: list[ImageItem]) -> list[ImageItem]:
    """Unused training images of the classes, at most `MAX_HELD_OUT`."""
    used = {item.id for item in train.sample.items} | {image.id for image in train.unreadable}
    known = {item.label for item in train.sample.items}
    rest = [item for item in items if item.id not in used and item.label in known]
    order = np.random.default_rng(train.sample.seed).permutation(len(rest))
    return [rest[i] for i in sorted(order[:MAX_HELD_OUT])]


def _check_training(out: Path) -> None:
    """Refuse to overwrite a file that is not ours."""
    if (out / TRAINING).exists():
        try:
            known = read_json(out / TRAINING)
        except ArtifactError:
            known = None
        if not isinstance(known, dict) or known.get("format") != FORMAT:
            raise InputError(f"{out / TRAINING} was not written by deltaenergy, and was not changed. Move it away.")


def _calibration_images(
    detector: Detector, train: TrainSet, held_out: list[ImageItem] | None, test: TestImages | None
) -> tuple[Any, str, bool]:
    """The best available images for the threshold, what they are, and whether they were trained on."""
    if held_out is not None:
        images = train.without_trained(held_out)
        if len(images) < len(held_out):
            warnings.warn(
                f"{len(held_out) - len(images)} of the {len(held_out)} images for the threshold were trained on: "
                + (
                    "they are not used." if images else "all of them, so the threshold will reject more than requested."
                ),
                stacklevel=3,
            )
        return images or held_out, "in-distribution images", not images
    if test is not None and not test.drawn:
        score = detector.score
        encoded = detector.classifier.takes_features and not (score.needs_images or Need.LABELS in score.needs)
        return test.features if encoded else list(test.items), test.source, False
    warnings.warn(
        "There are only training images, so the threshold was set on those: it will reject more than requested. "
        "Pass `val` or `id_images`, or calibrate on new images.",
        stacklevel=3,
    )
    return train.sample.items, "training images", True
