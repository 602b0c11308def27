"""A classifier in the training loop: batches of training images in, the method's losses and its terms out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import Method, TrainViews
from deltaenergy.training.checkpoints import CheckpointFolder
from deltaenergy.training.loop import EpochLog, PlannedStage, Step, Trained, train
from deltaenergy.training.recipe import Recipe, make_recipe
from deltaenergy.tuning.data import Validation


def recipes_of(method: Method, changes: Mapping[str, Any]) -> list[Recipe]:
    """The recipe of each of the method's stages: its paper's, then the stage's own, then the user's changes."""
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


class _Task:
    """What the loop asks of a classifier in training."""

    def __init__(
        self,
        classifier: Classifier,
        data: TrainViews,
        validation: Validation | None,
        on_epoch: Callable[[EpochLog], None] | None,
    ) -> None:
        self._classifier = classifier
        self.size = len(data.labels)
        self._data, self._validation, self._on_epoch = data, validation, on_epoch
        self._warned: set[str] = set()
        self._batch: tuple[torch.Tensor, Any] | None = None

    @property
    def module(self) -> Classifier:
        return self._classifier

    def step(self, indices: torch.Tensor, epoch: int, phase: str, generator: torch.Generator) -> Step:
        classifier = self._classifier
        classifier.phase, classifier.generator = phase, generator
        # The phases of a step look at the same views.
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
        return None if self._validation is None else validate(self._classifier, self._validation)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        self._classifier.end_epoch(epoch, epochs)

    def end_stage(self, phase: str, generator: torch.Generator) -> None:
        # A run that is resumed after the last step of a stage has not been told of them.
        self._classifier.phase, self._classifier.generator = phase, generator
        self._classifier.end_stage()

    def told(self, log: EpochLog) -> None:
        """Warn once for each term that has something to say of an epoch, then tell the caller."""
        for term in self._classifier.method.terms:
            message = term.warning(log.logged)
            if message is not None and term.name not in self._warned:
                self._warned.add(term.name)
                warnings.warn(message, stacklevel=2)
        if self._on_epoch is not None:
            self._on_epoch(log)
