"""The one training loop: frozen towers, a few parameters, the recipe of the CoOp family.

SGD with rate 0.002, momentum 0.9 and weight decay 5e-4 in batches of 32; one warm-up epoch at 1e-5, then

    rate(e) = ½ · 0.002 · (1 + cos(π (e − w) / (E − w))),   w warm-up epochs, E epochs in all

Every random number comes from one generator, whose state is part of the checkpoint with parameters and momentum: a
run that was killed and resumed ends bit by bit like one that was not. With validation images the epoch with the best
accuracy is kept, and training stops when it has not improved for a while; without, the last epoch is.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from deltaenergy.classifiers.learner import Learner
from deltaenergy.classifiers.methods import Term
from deltaenergy.errors import InputError
from deltaenergy.tuning.checkpoints import Checkpoint, CheckpointFolder, TrainingError
from deltaenergy.tuning.data import TrainImages


@dataclass(frozen=True)
class Recipe:
    """How to train. `patience`: epochs without a better validation accuracy after which training stops."""

    epochs: int = 30
    lr: float = 0.002
    batch_size: int = 32
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    optimizer: str = "sgd"
    patience: int = 10

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 < self.lr < math.inf:
            raise InputError(f"lr must be a positive number, got {self.lr}.")
        if self.optimizer not in ("sgd", "adamw"):
            raise InputError(f"optimizer must be 'sgd' or 'adamw', got {self.optimizer!r}.")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        passed = (epoch - self.warmup_epochs) / max(1, self.epochs - self.warmup_epochs)
        return 0.5 * self.lr * (1 + math.cos(math.pi * passed))

    def build(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser."""
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay, eps=1e-4)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class EpochLog:
    """What happened in one epoch, counted from 1. `logged` holds values of attached terms, such as e^L."""

    epoch: int
    rate: float
    loss: float
    accuracy: float
    val_accuracy: float | None = None
    val_loss: float | None = None
    logged: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Validation:
    """Unit features of held-out images and their classes."""

    features: torch.Tensor
    labels: torch.Tensor


@dataclass
class Trained:
    """The log of a run, and the epoch whose parameters the learner holds now."""

    epochs: list[EpochLog]
    kept_epoch: int


def train(
    learner: Learner,
    data: TrainImages,
    recipe: Recipe,
    *,
    generator: torch.Generator,
    terms: Sequence[Term] = (),
    validation: Validation | None = None,
    checkpoints: CheckpointFolder | None = None,
    on_epoch: Callable[[EpochLog], None] | None = None,
) -> Trained:
    """Train `learner` in place, going on from its last checkpoint if there is one."""
    run = _Run(learner, recipe, generator)
    if checkpoints is not None and (saved := checkpoints.load()) is not None:
        run.restore(saved)
    warned: set[str] = set()
    for epoch in range(len(run.logs), recipe.epochs):
        if validation is not None and run.stale >= recipe.patience:
            break
        log = _epoch(run, data, terms, epoch, checkpoints, validation)
        run.keep(log)
        if checkpoints is not None:
            checkpoints.save(run.checkpoint())
        for term in terms:
            message = term.warning(log.logged)
            if message is not None and term.name not in warned:
                warned.add(term.name)
                warnings.warn(message, stacklevel=2)
        if on_epoch is not None:
            on_epoch(log)
    return run.finish(best=validation is not None)


class _Run:
    """The state of a run: all that a checkpoint holds."""

    def __init__(self, learner: Learner, recipe: Recipe, generator: torch.Generator) -> None:
        self.learner = learner
        self.recipe = recipe
        self.generator = generator
        self.parameters = {name: p for name, p in learner.named_parameters() if p.requires_grad}
        self.optimizer = recipe.build(list(self.parameters.values()))
        self.logs: list[EpochLog] = []
        self.best: dict[str, torch.Tensor] = {}
        self.best_epoch = 0

    @property
    def stale(self) -> int:
        """Epochs since the best one."""
        return len(self.logs) - self.best_epoch

    def keep(self, log: EpochLog) -> None:
        """Add an epoch; remember its parameters if it is the best on validation (the lower loss breaks ties)."""
        self.logs.append(log)
        if log.val_accuracy is not None and (self.best_epoch == 0 or _quality(log) > _quality(self._best_log())):
            self.best_epoch = log.epoch
            self.best = {name: p.detach().clone() for name, p in self.parameters.items()}

    def finish(self, *, best: bool) -> Trained:
        """Put the best epoch's parameters back if asked."""
        if not best or not self.best:
            return Trained(self.logs, len(self.logs))
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.best[name])
        return Trained(self.logs, self.best_epoch)

    def checkpoint(self) -> Checkpoint:
        tensors: dict[str, torch.Tensor] = {f"parameter.{name}": p for name, p in self.parameters.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["generator"] = self.generator.get_state()
        values = {"logs": [asdict(log) for log in self.logs], "best_epoch": self.best_epoch}
        return Checkpoint(len(self.logs), tensors, values)

    def restore(self, saved: Checkpoint) -> None:
        self.logs = [EpochLog(**log) for log in saved.values["logs"]]
        self.best_epoch = int(saved.values["best_epoch"])
        self.generator.set_state(saved.tensors["generator"].cpu())
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(saved.tensors[f"parameter.{name}"])
        for key, tensor in saved.tensors.items():
            if key.startswith("best."):
                name = key.removeprefix("best.")
                self.best[name] = tensor.to(self.parameters[name].device)
            elif key.startswith("optimizer."):
                _, entry, name = key.split(".", 2)
                parameter = self.parameters[name]
                # AdamW counts its steps on the host. A clone is aligned in memory as the original was, which can
                # decide the last bit of later sums; a tensor in a file need not be.
                device = tensor.device if entry == "step" else parameter.device
                self.optimizer.state[parameter][entry] = tensor.to(device).clone()

    def _best_log(self) -> EpochLog:
        return self.logs[self.best_epoch - 1]


def _quality(log: EpochLog) -> tuple[float, float]:
    return log.val_accuracy or 0.0, -(log.val_loss or 0.0)


def _epoch(
    run: _Run,
    data: TrainImages,
    terms: Sequence[Term],
    epoch: int,
    checkpoints: CheckpointFolder | None,
    validation: Validation | None,
) -> EpochLog:
    began = time.perf_counter()
    rate = run.recipe.rate(epoch)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    total = correct = 0.0
    logged: dict[str, float] = {}
    count = len(data.labels)
    run.learner.train()
    for indices in torch.split(torch.randperm(count, generator=run.generator), run.recipe.batch_size):
        batch = data.batch(indices, epoch, run.generator)
        outputs = run.learner(batch)
        losses = list(run.learner.losses(outputs, batch).values())
        for term in terms:
            value, values = term(outputs)
            losses.append(value)
            for name, number in values.items():
                logged[name] = logged.get(name, 0.0) + number * len(indices) / count
        loss = torch.stack(losses).sum()
        if not torch.isfinite(loss):
            raise _not_finite(f"the loss became {loss.item()}", epoch, rate, checkpoints)
        run.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
        total += float(loss.detach()) * len(indices)
        correct += float((outputs.similarities.argmax(dim=1) == batch.labels).sum())
    if not all(torch.isfinite(p).all() for p in run.parameters.values()):
        raise _not_finite("the parameters became NaN or infinite", epoch, rate, checkpoints)
    val_accuracy, val_loss = (None, None) if validation is None else validate(run.learner, validation)
    seconds = time.perf_counter() - began
    return EpochLog(epoch + 1, rate, total / count, correct / count, val_accuracy, val_loss, logged, seconds)


def validate(learner: Learner, validation: Validation) -> tuple[float, float]:
    """Accuracy and cross-entropy on held-out images."""
    learner.eval()
    with torch.no_grad():
        similarities = learner.classifier().similarities_of_features(validation.features)
        loss = nn.functional.cross_entropy(learner.model.logit_scale * similarities, validation.labels)
        correct = (similarities.argmax(dim=1) == validation.labels).float().mean()
    return float(correct), float(loss)


def _not_finite(what: str, epoch: int, rate: float, checkpoints: CheckpointFolder | None) -> TrainingError:
    stays = "" if checkpoints is None else f" {checkpoints.describe_last()}"
    return TrainingError(
        f"Training stopped: {what} in epoch {epoch + 1}, at a learning rate of {rate:g}.{stays} Use a lower learning "
        "rate, or weaker loss terms."
    )
