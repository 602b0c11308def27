"""`tune`: a few labelled images per class in, a tuned Classifier out."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deltaenergy.classes import check_classes
from deltaenergy.classifiers.learner import TunedClassifier
from deltaenergy.classifiers.methods import Tuning, make_tuning
from deltaenergy.data.inputs import labelled_folders, load_images
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.files import hash_strings, read_tensors, write_tensors
from deltaenergy.models.base import Model, require_towers
from deltaenergy.progress import Progress
from deltaenergy.tuning.checkpoints import CheckpointFolder, saving
from deltaenergy.tuning.data import CachedViews, LiveViews, TrainImages, encode_views
from deltaenergy.tuning.fewshot import FewShot, class_indices, sample_few_shots
from deltaenergy.tuning.loop import EpochLog, Recipe, Trained, Validation, train, validate

DEFAULT_VIEWS = 8
VIEWS_FILE = "views.safetensors"


@dataclass(frozen=True)
class TrainSet:
    """A few-shot sample with its views: encode once, tune by any number of methods."""

    sample: FewShot
    images: TrainImages
    views: int | str


def tune(
    model: Model,
    classes: Sequence[str],
    train: Any,
    method: str | Tuning = "ebm",
    *,
    shots: int = 16,
    seed: int = 1,
    val: Any = None,
    domains: bool = False,
    views: int | str = DEFAULT_VIEWS,
    search: bool = False,
    recipe: Mapping[str, Any] | None = None,
    checkpoints: str | Path | None = None,
    on_epoch: Callable[[EpochLog], None] | None = None,
    on_candidate: Callable[[str, float], None] | None = None,
    progress: Progress | None = None,
) -> TunedClassifier:
    """Tune a classifier on a few labelled images per class.

    Args:
        model: any model with towers; they stay frozen.
        classes: class names. Labels of images are matched to them (`_` reads as a space, case is ignored).
        train: labelled images: a folder with one subfolder per class, a table with a label column, a list of
            `ImageItem`; or a `TrainSet` that `prepare_training` made.
        method: a tuning method with parameters if you like, `coop(context_length=4)+ebm(p=0.5)`; see `list_methods`.
        shots: images per class, spread over the domains where images have one.
        seed: draws the sample, the views, the initial parameters and the order of the images.
        domains: whether folders are DOMAIN/CLASS/ rather than CLASS/.
        val: labelled images: the epoch with the best accuracy on them is kept. Without, the last epoch is.
        views: random views per image that are encoded once, or "live": a fresh view in every step.
        search: try every combination of the method's grid and keep the best on `val`.
        recipe: fields of `Recipe` to change, such as {"epochs": 50, "lr": 0.001}.
        checkpoints: a folder; the run saves its state there after every epoch, and the same call goes on from it.
        on_epoch: called with the log of each epoch.
        on_candidate: called with each searched setting and its validation accuracy.
        progress: called while images are encoded.
    """
    names = _check_classes(classes)
    tuning = make_tuning(method)
    if search and val is None:
        raise InputError("search needs validation images: give val (--val DIR).")
    folder = None if checkpoints is None else Path(checkpoints)
    if not isinstance(train, TrainSet):
        train = prepare_training(
            model,
            names,
            train,
            shots,
            seed,
            views,
            domains=domains,
            patches=tuning.method.needs_patches,
            cache=folder,
            progress=progress,
        )
    elif train.sample.classes != names:
        raise InputError("train was prepared for another class list. Prepare it again with these classes.")
    if tuning.method.needs_patches and isinstance(train.images, CachedViews) and train.images.patches is None:
        raise InputError(f"{tuning.method.name} looks at patches: prepare the training images with patches=True.")
    validation = None
    if val is not None:
        validation = prepare_validation(model, names, val, domains=domains, progress=progress)
    job = _Job(model, train, validation, seed, dict(recipe or {}), on_epoch)
    if search:
        return _search(job, tuning, folder, on_candidate)
    return job.run(tuning, folder)


def prepare_training(
    model: Model,
    classes: Sequence[str],
    images: Any,
    shots: int = 16,
    seed: int = 1,
    views: int | str = DEFAULT_VIEWS,
    *,
    domains: bool = False,
    patches: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> TrainSet:
    """Draw the few-shot sample (unless `images` is one) and encode its views, keeping them in `cache` if given."""
    if isinstance(images, FewShot):
        sample = images
    else:
        sample = sample_few_shots(labelled_items(images, domains), classes, shots, seed)
    if views == "live":
        labels = torch.tensor(sample.labels)
        return TrainSet(
            sample, LiveViews(require_towers(model, "tune"), sample.items, labels, sample.seed, patches=patches), views
        )
    if isinstance(views, bool) or not isinstance(views, int):
        raise InputError(f"views must be a whole number or 'live', got {views!r}.")
    cached = _encode_or_load(model, sample, views, patches, cache, progress)
    return TrainSet(sample, cached, views)


def prepare_validation(
    model: Model, classes: Sequence[str], images: Any, *, domains: bool = False, progress: Progress | None = None
) -> Validation:
    """Encode labelled validation images; a class without any is a warning, one that is unknown an error."""
    if isinstance(images, Validation):
        return images
    items = labelled_items(images, domains)
    labels = class_indices(items, classes, "validation")
    absent = [name for k, name in enumerate(classes) if k not in set(labels)]
    if absent:
        warnings.warn(
            f"There is no validation image of {len(absent)} class(es), for example {absent[0]!r}: "
            "validation says nothing about them.",
            stacklevel=3,
        )
    encoded = require_towers(model, "tune").encode(items, progress=progress)
    if encoded.unreadable:
        raise UnreadableImagesError(encoded.unreadable)
    features = torch.from_numpy(encoded.features).to(model.device)
    return Validation(features, torch.tensor(labels, device=model.device))


@dataclass(frozen=True)
class _Job:
    """All that is the same for every setting of a search."""

    model: Model
    train: TrainSet
    validation: Validation | None
    seed: int
    changes: dict[str, Any]
    on_epoch: Callable[[EpochLog], None] | None

    def recipe(self, tuning: Tuning) -> Recipe:
        known = {field.name for field in dataclasses.fields(Recipe)}
        for name in self.changes:
            if name not in known:
                raise InputError(f"The recipe has no field {name!r}. Known: {', '.join(sorted(known))}.")
        return Recipe(**{**tuning.method.recipe, **self.changes})

    def run(self, tuning: Tuning, folder: Path | None) -> TunedClassifier:
        """Train one setting; its classifier knows how it was trained."""
        recipe = self.recipe(tuning)
        sample = self.train.sample
        generator = torch.Generator().manual_seed(self.seed)
        learner = tuning.method.learner(self.model, sample.classes, self.train.images, generator)
        trained = Trained([], 0)
        if tuning.method.trains:
            keeper = None
            if folder is not None:
                keeper = CheckpointFolder(folder, self.identity(tuning, recipe))
            trained = train(
                learner,
                self.train.images,
                recipe,
                generator=generator,
                terms=tuning.terms,
                validation=self.validation,
                checkpoints=keeper,
                on_epoch=self.on_epoch,
            )
        classifier = learner.classifier()
        classifier.method = tuning.spec
        classifier.training = {
            "shots": sample.shots,
            "seed": self.seed,
            "images": len(sample.items),
            "sample": sample.hash,
            "views": self.train.views,
            "recipe": asdict(recipe) if tuning.method.trains else None,
            "kept_epoch": trained.kept_epoch,
            "epochs": [asdict(log) for log in trained.epochs],
        }
        if self.validation is not None:
            accuracy, loss = validate(learner, self.validation)
            classifier.training["validation"] = {"accuracy": accuracy, "loss": loss}
        return classifier

    def identity(self, tuning: Tuning, recipe: Recipe) -> dict[str, Any]:
        """What a checkpoint must agree on before a run goes on from it."""
        sample = self.train.sample
        return {
            "model": self.model.fingerprint,
            "classes": hash_strings(sample.classes),
            "method": tuning.spec,
            "recipe": asdict(recipe),
            "seed": self.seed,
            "views": self.train.views,
            "training images": sample.hash,
            "validation": None if self.validation is None else hash_strings(map(str, self.validation.labels.tolist())),
        }


def _search(
    job: _Job, tuning: Tuning, folder: Path | None, on_candidate: Callable[[str, float], None] | None
) -> TunedClassifier:
    """The candidate with the best validation accuracy; the lower loss, then the earlier one, breaks ties."""
    candidates = list(tuning.candidates(len(job.train.sample.classes)))
    if len(candidates) == 1:
        warnings.warn(f"{tuning.spec} has no grid to search; its settings are used as they are.", stacklevel=3)
        return job.run(tuning, folder)
    searched: list[dict[str, Any]] = []
    best: tuple[tuple[float, float], TunedClassifier] | None = None
    for number, candidate in enumerate(candidates):
        place = None if folder is None else folder / f"search-{number:03d}"
        classifier = job.run(candidate, place)
        found = classifier.training["validation"]
        searched.append({"method": candidate.spec, **found})
        if on_candidate is not None:
            on_candidate(candidate.spec, found["accuracy"])
        quality = (found["accuracy"], -found["loss"])
        if best is None or quality > best[0]:
            best = quality, classifier
    assert best is not None  # a product of grids is never empty
    best[1].training["searched"] = searched
    return best[1]


def _check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    names = check_classes(classes)
    if len(names) == 1:
        raise InputError(
            f"Tuning needs at least two classes, and got only {names[0]!r}: with one, every image is right already "
            "and nothing can be learned. Add a second class, or use the zero-shot classifier."
        )
    if len(set(names)) < len(names):
        raise InputError("Tuning needs distinct class names: an image's label must tell which class it is.")
    return names


def labelled_items(images: Any, domains: bool = False) -> list[ImageItem]:
    """Labelled images: a folder with one subfolder per class (or domain, then class), or what load_images takes."""
    if isinstance(images, list) and images and all(isinstance(item, ImageItem) for item in images):
        return images
    if isinstance(images, (str, os.PathLike)) and Path(images).expanduser().is_dir():
        return labelled_folders(images, domains)
    return load_images(images)


def _encode_or_load(
    model: Model, sample: FewShot, views: int, patches: bool, cache: Path | None, progress: Progress | None
) -> CachedViews:
    """Encode the views, or take them from the cache of an interrupted run."""
    key = hash_strings([model.fingerprint, sample.hash, str(sample.seed), str(views), str(patches)])
    path = None if cache is None else cache / VIEWS_FILE
    labels = torch.tensor(sample.labels, device=model.device)
    if path is not None and path.exists():
        tensors = read_tensors(path)
        if f"features.{key}" in tensors:
            return CachedViews(tensors[f"features.{key}"], labels, tensors.get("patches"))
    encoded = encode_views(
        require_towers(model, "tune"),
        sample.items,
        sample.labels,
        views,
        sample.seed,
        patches=patches,
        progress=progress,
    )
    if path is not None:
        kept = {f"features.{key}": encoded.features}
        if encoded.patches is not None:
            kept["patches"] = encoded.patches
        with saving("The encoded training views", path.parent, "Nothing was trained yet."):
            write_tensors(path, kept)
    return encoded
