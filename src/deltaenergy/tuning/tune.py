"""`tune`: a few labelled images per class in, a tuned Classifier out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.estimate import CostEstimate
from deltaenergy.classifiers.methods import Method, TrainViews, make_method
from deltaenergy.core.classes import check_classes
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.errors import InputError
from deltaenergy.files import hash_strings
from deltaenergy.models.base import Model, check_model
from deltaenergy.models.precomputed import PrecomputedModel
from deltaenergy.training.checkpoints import CheckpointFolder
from deltaenergy.training.loop import EpochLog, PlannedStage, Step, Trainable, Trained, train
from deltaenergy.training.recipe import Recipe, make_recipe
from deltaenergy.tuning.prepare import DEFAULT_VIEWS, TrainSet, hash_features, prepare_training, prepare_validation
from deltaenergy.tuning.views import Validation

# Chosen by measurements (see the results in the docs).
DEFAULT_METHOD = "lp++"


def tune(
    model: Model,
    classes: str | Sequence[str],
    train: Any,
    method: str | Method = DEFAULT_METHOD,
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
) -> Classifier:
    """Tune a classifier on a few labelled images per class.

    Args:
        model: any model; its towers stay frozen. A `PrecomputedModel` works with methods that learn from features and
            fixed class texts (task-res, clap, lp++, croft and the adapters); without class vectors with linear-probe
            and centroids.
        classes: class names, in a list or in one string with commas. Labels of images are matched to them (`_` is a
            space, case is ignored).
        train: labelled images: a folder with one subfolder per class, a table with a label column, a list of
            `ImageItem`; or a `TrainSet` that `prepare_training` made. Methods that need only features also accept a
            feature store or `LabelledFeatures`.
        method: a tuning method, optionally with parameters: `coop(context_length=4)+ebm(p=0.5)`; see `list_methods`.
        shots: images per class, spread over their domains.
        seed: random seed of the sample, the views, the initial parameters and the order of the images.
        domains: whether folders are DOMAIN/CLASS/ rather than CLASS/.
        val: labelled images, as `train`: the epoch with the best accuracy on them is kept; without `val`, the last
            epoch.
        views: number of random views per image, encoded once; "live" for a new view in every step; or "test" for only
            the test view, which methods without augmentation always use.
        search: try every combination of the method's grid and keep the best on `val`.
        recipe: fields of `Recipe` to change, such as {"epochs": 50, "lr": 0.001}, in every stage.
        checkpoints: a folder; the run saves its state there after every epoch, and the same call resumes from it.
        on_epoch: called with the log of each epoch.
        on_candidate: called with each searched setting and its validation accuracy.
        progress: called while images are encoded.
    """
    names = check_tuned_classes(classes)
    chosen = make_method(method)
    changes = dict(recipe or {})
    if changes and not chosen.trains:
        warnings.warn(f"{chosen.spec} is not trained in epochs: {', '.join(changes)} changes nothing.", stacklevel=2)
    if search and val is None:
        raise InputError("`search` needs validation images: pass `val`.")
    images = len(train.sample.items) if isinstance(train, TrainSet) else shots * len(names)
    estimate = check_fits(chosen, model, names, images, changes)
    if estimate is not None:
        estimate.warn_if_long(chosen.spec, model.device)
    folder = None if checkpoints is None else Path(checkpoints)
    if not isinstance(train, TrainSet):
        train = prepare_training(
            model,
            names,
            train,
            shots,
            seed,
            chosen.views_of(views),
            domains=domains,
            needs=chosen.needs_to_train,
            cache=folder,
            progress=progress,
            who=chosen.name,
        )
    elif train.sample.classes != names:
        raise InputError("train was prepared for another class list. Prepare it again with these classes.")
    elif train.views != chosen.views_of(train.views):
        again = chosen.views_of(train.views)
        train = prepare_training(
            model, names, train.sample, views=again, needs=chosen.needs_to_train, cache=folder, progress=progress
        )
    if not train.images.holds(chosen.needs_to_train):
        kinds = _kinds(chosen.needs_to_train)
        raise InputError(f"{chosen.name} needs {kinds}: prepare the training images with needs={{{kinds}}}.")
    validation = None
    if val is not None:
        needs = chosen.needs_to_validate
        validation = prepare_validation(
            model, names, val, domains=domains, needs=needs, progress=progress, who=chosen.name
        )
        # The frozen model's features would also run, but be wrong.
        if not validation.holds(needs):
            kinds = _kinds(needs)
            raise InputError(f"{chosen.name} needs {kinds}: prepare the validation images with needs={{{kinds}}}.")
        train.warn_of_overlap(validation, "validation")
    job = _Job(model, train, validation, seed, changes, on_epoch)
    if search:
        return _search(job, chosen, folder, on_candidate)
    return job.run(chosen, folder)


def _kinds(needs: frozenset[Need]) -> str:
    return ", ".join(sorted(need.value for need in needs - {Need.FEATURES}))


@dataclass(frozen=True)
class _Job:
    """What all settings of a search share."""

    model: Model
    train: TrainSet
    validation: Validation | None
    seed: int
    changes: dict[str, Any]
    on_epoch: Callable[[EpochLog], None] | None

    def run(self, method: Method, folder: Path | None) -> Classifier:
        """Train one setting; its classifier records how it was trained."""
        sample = self.train.sample
        generator = torch.Generator().manual_seed(self.seed)
        classifier = method.build(self.model, sample.classes, self.train.images, generator)
        recipes = [asdict(recipe) for recipe in recipes_of(method, self.changes)]
        trained = Trained([], 0)
        if method.trains:
            trained = fit(
                classifier,
                self.train.images,
                generator=generator,
                recipe=self.changes,
                validation=self.validation,
                checkpoints=None if folder is None else CheckpointFolder(folder, self.identity(method, recipes)),
                on_epoch=self.on_epoch,
            )
        classifier.requires_grad_(False)
        classifier.record = {
            "shots": sample.shots,
            "seed": self.seed,
            "images": len(sample.items),
            "sample": sample.hash,
            "views": self.train.views,
            "recipe": None if not method.trains else recipes[0] if len(recipes) == 1 else recipes,
            "kept_epoch": trained.kept_epoch,
            "epochs": [asdict(log) for log in trained.epochs],
        }
        if chosen := classifier.chosen():
            classifier.record["chosen"] = chosen
        if self.validation is not None:
            accuracy, loss = validate(classifier, self.validation)
            classifier.record["validation"] = {"accuracy": accuracy, "loss": loss}
        return classifier

    def identity(self, method: Method, recipes: list[dict[str, Any]]) -> dict[str, Any]:
        """What a checkpoint must agree on before a run resumes from it."""
        sample, vectors = self.train.sample, None
        if isinstance(self.model, PrecomputedModel) and self.model.classes:
            # The fingerprint of a precomputed model does not cover these.
            vectors = hash_features(self.model.class_features(sample.classes))
        return {
            "model": self.model.fingerprint,
            "classes": hash_strings(sample.classes),
            "class vectors": vectors,
            "method": method.spec,
            "recipe": recipes[0] if len(recipes) == 1 else recipes,
            "seed": self.seed,
            "views": self.train.views,
            "training images": self.train.identity,
            "validation": None if self.validation is None else self.validation.identity,
        }


def _search(
    job: _Job, method: Method, folder: Path | None, on_candidate: Callable[[str, float], None] | None
) -> Classifier:
    """The candidate with the best validation accuracy; ties go to the lower loss, then to the earlier candidate."""
    candidates = list(method.candidates(len(job.train.sample.classes)))
    if len(candidates) == 1:
        warnings.warn(f"{method.spec} has no grid to search; its settings are used as they are.", stacklevel=3)
        return job.run(method, folder)
    searched: list[dict[str, Any]] = []
    best: tuple[tuple[float, float], Classifier] | None = None
    for number, candidate in enumerate(candidates):
        checkpoints = None if folder is None else folder / f"search-{number:03d}"
        classifier = job.run(candidate, checkpoints)
        measured = classifier.record["validation"]
        searched.append({"method": candidate.spec, **measured})
        if on_candidate is not None:
            on_candidate(candidate.spec, measured["accuracy"])
        quality = (measured["accuracy"], -measured["loss"])
        if best is None or quality > best[0]:
            best = quality, classifier
    assert best is not None  # a product of grids is never empty
    best[1].record["searched"] = searched
    return best[1]


def check_fits(
    method: Method, model: Model, classes: Sequence[str], images: int, changes: Mapping[str, Any]
) -> CostEstimate | None:
    """Raise `InputError` for a model that the method cannot tune, or cannot tune in this machine's memory."""
    check_model(model, "tune")
    estimate = method.estimate(model, classes, images, recipes_of(method, changes))
    if estimate is not None:
        estimate.refuse_beyond_memory(method.spec, model.device)
    return estimate


def check_tuned_classes(classes: str | Sequence[str]) -> tuple[str, ...]:
    """At least two distinct class names."""
    names = check_classes(classes)
    if len(names) == 1:
        raise InputError(
            f"Tuning needs at least two classes, got only {names[0]!r}. Add a second class, or use the zero-shot "
            "classifier."
        )
    if len(set(names)) < len(names):
        raise InputError("Tuning needs distinct class names.")
    return names


def recipes_of(method: Method, changes: Mapping[str, Any]) -> list[Recipe]:
    """The recipe of each of the method's stages: the paper's, changed by the stage, then by the user."""
    return [make_recipe(method.recipe, stage.recipe, changes) for stage in method.stages]


def fit(
    classifier: Classifier,
    data: TrainViews,
    *,
    generator: torch.Generator,
    recipe: Mapping[str, Any] | None = None,
    validation: Validation | None = None,
    checkpoints: CheckpointFolder | None = None,
    on_epoch: Callable[[EpochLog], None] | None = None,
) -> Trained:
    """Train `classifier` in place by its method's stages; it is ready for use afterwards."""
    planned = [
        PlannedStage(one, stage.phases, classifier.keeps_best_epoch and stage.keep_best)
        for one, stage in zip(recipes_of(classifier.method, recipe or {}), classifier.method.stages)
    ]
    task = _Task(classifier, data, validation, on_epoch)
    trained = train(task, planned, generator=generator, checkpoints=checkpoints, on_epoch=task.told)
    classifier.phase, classifier.generator = "", None
    classifier.eval()
    return trained


def validate(classifier: Classifier, validation: Validation) -> tuple[float, float]:
    """Accuracy and cross-entropy on held-out images."""
    classifier.eval()
    needs = classifier.method.needs_to_validate
    with torch.no_grad():
        similarities = torch.cat([classifier(batch).similarities for batch in validation.batches(needs)])
        loss = classifier.cross_entropy(similarities, validation.labels)
        correct = (similarities.argmax(dim=1) == validation.labels).float().mean()
    return float(correct), float(loss)


class _Task(Trainable):
    """A classifier in training, for the loop."""

    def __init__(
        self,
        classifier: Classifier,
        data: TrainViews,
        validation: Validation | None,
        on_epoch: Callable[[EpochLog], None] | None,
    ) -> None:
        self.module: Classifier = classifier
        self.size = len(data.labels)
        self._data, self._validation, self._on_epoch = data, validation, on_epoch
        self._warned: set[str] = set()
        self._batch: tuple[torch.Tensor, Any] | None = None

    def step(self, indices: torch.Tensor, epoch: int, phase: str, generator: torch.Generator) -> Step:
        classifier = self.module
        classifier.phase, classifier.generator = phase, generator
        # The phases of a step use the same views.
        if self._batch is None or self._batch[0] is not indices:
            self._batch = indices, self._data.batch(indices, epoch, generator)
        batch = self._batch[1]
        outputs = classifier(batch)
        losses = classifier.losses(outputs, batch)
        logged = classifier.logged()
        for term in classifier.method.terms:
            losses[term.name], values = term(outputs, batch)
            logged.update(values)
        correct = float((outputs.similarities.argmax(dim=1) == batch.labels).sum())
        return Step(losses, correct, logged)

    def validate(self) -> tuple[float, float] | None:
        return None if self._validation is None else validate(self.module, self._validation)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        self.module.end_epoch(epoch, epochs)

    def end_stage(self, phase: str, generator: torch.Generator) -> None:
        # A run that is resumed after the last step of a stage does not know them yet.
        self.module.phase, self.module.generator = phase, generator
        self.module.end_stage()

    def told(self, log: EpochLog) -> None:
        """Give each term's warning on an epoch once, then call the caller."""
        for term in self.module.method.terms:
            message = term.warning(log.logged)
            if message is not None and term.name not in self._warned:
                self._warned.add(term.name)
                warnings.warn(message, stacklevel=2)
        if self._on_epoch is not None:
            self._on_epoch(log)
