"""`tune_detector`: what `deltaenergy tune` does, in one call: tune, set a threshold on other images, save.

Everything is checked before anything is read, trained or replaced. The run keeps its state in the result's folder and
goes on from it when the same call is made again; when the detector is written, that state is removed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from deltaenergy.classifiers.methods import Method, make_method
from deltaenergy.data.inputs import load_images
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector import Detector
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import FolderLock, check_writable, read_json, write_json
from deltaenergy.labels import class_names
from deltaenergy.models.base import Model
from deltaenergy.needs import Need
from deltaenergy.progress import Progress
from deltaenergy.scores.base import Score
from deltaenergy.scores.registry import make_score
from deltaenergy.thresholds import CONFIDENCE, check_keep
from deltaenergy.tuning.checkpoints import saving
from deltaenergy.tuning.data import Validation
from deltaenergy.tuning.loop import EpochLog
from deltaenergy.tuning.prepare import DEFAULT_VIEWS, TrainSet, labelled_items, prepare_training, prepare_validation
from deltaenergy.tuning.stored import has_no_pictures, read_stored
from deltaenergy.tuning.tune import check_fits, check_recipe, check_tuned_classes, tune
from deltaenergy.tuning.workplace import FOLDER, clear_workplace

# Training images beyond the sample make an honest calibration set; this many are plenty.
MAX_HELD_OUT = 1000
# The sample and the log of the training, beside the detector.
TRAINING = "deltaenergy-training.json"
FORMAT = "deltaenergy training 1"

Announce = Callable[[str], AbstractContextManager[Progress | None]]


@dataclass(frozen=True)
class TunedDetector:
    """The detector, what its threshold was set on, and the images that could not be read."""

    detector: Detector
    calibrated_on: str
    training_images: int
    unreadable: list[Unreadable] = field(default_factory=list)


def tune_detector(
    model: Model | Callable[[], Model],
    train: Any,
    out: str | Path,
    method: str | Method = "ebm",
    *,
    classes: Sequence[str] | None = None,
    shots: int = 16,
    seed: int = 1,
    val: Any = None,
    id_images: Any = None,
    score: str | Score = "delta-energy",
    keep: float = 0.95,
    domains: bool = False,
    views: int | str = DEFAULT_VIEWS,
    search: bool = False,
    recipe: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    batch_size: int = 32,
    on_epoch: Callable[[EpochLog], None] | None = None,
    on_candidate: Callable[[str, float], None] | None = None,
    announce: Announce = lambda _: nullcontext(),
) -> TunedDetector:
    """Tune a classifier, calibrate a detector with it and write that to the folder `out`.

    `model` may be a function that loads one: it is called once everything else has been checked. Without `classes`,
    the training folders' names are the classes. The threshold is set on `id_images`; by default on those of `val`,
    else on training images that were not drawn, else, with a warning, on the trained ones. `overwrite` allows to
    replace a detector in `out`, and to give up an unfinished run of other settings there. `announce` is called with
    what is being done, and gives the progress callback for it. All else is as in `tune`, `Detector` and `calibrate`.
    """
    out, chosen, scored = Path(out), make_method(method), make_score(score)
    check_keep(keep)
    check_recipe(chosen, recipe or {})
    if search and val is None:
        raise InputError("search needs validation images: give val (--val DIR).")
    check_writable(out, folder=True, option="--out")
    _check_replaceable(out, overwrite)
    items = labelled_items(train, domains, classes or ())
    names = check_tuned_classes(classes or class_names(items))
    held_out = None if id_images is None else load_images(id_images)
    validation_items = None if val is None else labelled_items(val, domains, classes or ())
    loaded = model() if callable(model) else model
    check_fits(chosen, loaded, names, shots * len(names), recipe or {})
    workplace = out / FOLDER
    with FolderLock(out):
        if overwrite:
            clear_workplace(workplace)
        with announce("Encoding images") as progress:
            prepared = prepare_training(
                loaded,
                names,
                items,
                shots,
                seed,
                chosen.views_of(views),
                needs=chosen.needs,
                cache=workplace,
                progress=progress,
                who=chosen.name,
            )
        validation = None
        if validation_items is not None:
            with announce("Encoding validation images") as progress:
                validation = prepare_validation(
                    loaded, names, validation_items, needs=chosen.needs, progress=progress, who=chosen.name
                )
        classifier = tune(
            loaded,
            names,
            prepared,
            chosen,
            seed=seed,
            val=validation,
            search=search,
            recipe=recipe,
            checkpoints=workplace,
            on_epoch=on_epoch,
            on_candidate=on_candidate,
        )
        detector = Detector(classifier, scored)
        with announce("Calibrating") as progress:
            source = _calibrate(detector, prepared, items, held_out, validation, keep, batch_size, progress)
        with saving("The tuned detector", out, f"The finished training is in {workplace}."):
            record = {"format": FORMAT, "method": classifier.method.spec, **classifier.record}
            write_json(out / TRAINING, {**record, "sample": prepared.sample.record()})
            detector.save(out)
        clear_workplace(workplace)
    unreadable = {image.id: image for image in (*prepared.unreadable, *detector.unreadable)}
    return TunedDetector(detector, source, len(prepared.sample.items), list(unreadable.values()))


def _check_replaceable(out: Path, overwrite: bool) -> None:
    """Refuse to write over a detector unasked, and over a file that is not ours at all."""
    if (out / "detector.json").exists() and not overwrite:
        raise InputError(f"--out {out} holds a detector already. Choose another folder, or give --overwrite.")
    if (out / TRAINING).exists():
        try:
            known = read_json(out / TRAINING)
        except ArtifactError:
            known = None
        if not isinstance(known, dict) or known.get("format") != FORMAT:
            raise InputError(f"{out / TRAINING} was not written by deltaenergy, and is left alone. Move it away.")


def _calibrate(
    detector: Detector,
    train: TrainSet,
    items: list[ImageItem],
    held_out: list[ImageItem] | None,
    validation: Validation | None,
    keep: float,
    batch_size: int,
    progress: Progress | None,
) -> str:
    """Set the threshold on the best images there are; returns what they were."""
    images: Any
    trained = False
    if held_out is None and validation is not None:
        images, source = list(validation.images), "validation images"
        classifier = detector.classifier
        if not (detector.score.needs_images or classifier.prompts_images) and classifier.needs <= {Need.FEATURES}:
            images = validation.features  # encoded already
    elif held_out is not None:
        images, source = train.without_trained(held_out), "in-distribution images"
        if len(images) < len(held_out):
            warnings.warn(
                f"{len(held_out) - len(images)} of the {len(held_out)} images for the threshold were trained on: "
                + ("they are left out." if images else "all of them, so the threshold will reject more than asked."),
                stacklevel=3,
            )
        trained = not images
        images = images or held_out
    else:
        used = {item.id for item in train.sample.items} | {image.id for image in train.unreadable}
        known = {item.label for item in train.sample.items}
        rest = [item for item in items if item.id not in used and item.label in known]
        order = np.random.default_rng(train.sample.seed).permutation(len(rest))
        images = [rest[i] for i in sorted(order[:MAX_HELD_OUT])]
        source = "training images that were not drawn"
        if not rest:
            images, source, trained = train.sample.items, "training images", True
            warnings.warn(
                "There are no images beside those trained on, so the threshold was set on these: it will reject more "
                "than the share asked for. Give --val or --id, or run calibrate on new images.",
                stacklevel=3,
            )
    if isinstance(images, list) and has_no_pictures(detector.classifier.model, images):
        images = read_stored(detector.classifier.model, images, detector.classifier.needs, detector.score.spec).features
    # Images that the classifier was trained on promise nothing of new ones.
    confidence = None if trained else CONFIDENCE
    detector.calibrate(images, keep, confidence, batch_size=batch_size, progress=progress)
    if trained and detector.guarantee is not None:
        detector.guarantee = replace(detector.guarantee, seen=True)
    return source
