"""The training loop, for anything that has parameters and gives a loss for some examples.

It tunes classifiers, CLIPN's "no" tower and the tiny benchmark model. A training has stages, each with a recipe; each
step runs the phases of a stage in order, each with its own parameters. Every random number comes from one generator,
whose state is part of the checkpoint, with parameters, buffers and the optimisers' state: a run that was killed and
resumed ends with the same bits. With validation the epoch with the best accuracy is kept, and training stops when it no
longer improves; otherwise the last epoch is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from deltaenergy.core.progress import Progress
from deltaenergy.training.checkpoints import Checkpoint, CheckpointFolder, TrainingError
from deltaenergy.training.recipe import Phase, Recipe


class Step(NamedTuple):
    """The result of a step: the terms of the loss by name, the number of correct examples, and values to log."""

    losses: dict[str, torch.Tensor]
    correct: float = 0.0
    logged: dict[str, float] = {}  # noqa: RUF012 (never changed)


class Trainable:
    """What the loop trains: a module, by `size` examples per epoch."""

    module: nn.Module
    size: int

    def step(self, indices: torch.Tensor, epoch: int, phase: str, generator: torch.Generator) -> Step:
        """The loss of some examples, with gradients; `epoch` counts from 0 within the stage."""
        raise NotImplementedError

    def validate(self) -> tuple[float, float] | None:
        """Accuracy and loss on held-out examples, if there are any."""
        return None

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Called after epoch 1 … `epochs` of a stage."""

    def end_stage(self, phase: str, generator: torch.Generator) -> None:
        """Called after a stage, with its kept parameters; `phase` is the last phase of its steps."""


@dataclass(frozen=True)
class PlannedStage:
    """A stage with its whole recipe. `keep_best`: whether validation chooses the epoch."""

    recipe: Recipe
    phases: tuple[Phase, ...] = (Phase(),)
    keep_best: bool = True


@dataclass(frozen=True)
class EpochLog:
    """What happened in one epoch, counted from 1 within its stage. `logged` has further values, such as e^L."""

    epoch: int
    rate: float
    loss: float
    accuracy: float
    val_accuracy: float | None = None
    val_loss: float | None = None
    logged: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    stage: int = 1

    @property
    def quality(self) -> tuple[float, float]:
        """Validation accuracy, and the lower loss to break ties."""
        return self.val_accuracy or 0.0, -(self.val_loss or 0.0)


@dataclass(frozen=True)
class Trained:
    """The log of a run, and the epoch of the last stage whose parameters were kept."""

    epochs: list[EpochLog]
    kept_epoch: int


def train(
    task: Trainable,
    stages: Sequence[PlannedStage],
    *,
    generator: torch.Generator,
    checkpoints: CheckpointFolder | None = None,
    on_epoch: Callable[[EpochLog], None] | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train `task.module` in place, resuming from its last checkpoint if there is one.

    `progress` gets the number of finished steps, of all stages.
    """
    steps = [stage.recipe.epochs * -(-task.size // stage.recipe.batch_size) for stage in stages]
    saved = None if checkpoints is None else checkpoints.load()
    first = 0 if saved is None else int(saved.values["stage"])
    logs = [] if saved is None else [EpochLog(**log) for log in saved.values["logs"]]
    kept = 0
    for number in range(first, len(stages)):
        run = _StageRun(task, stages[number], number, generator, logs)
        if saved is not None and number == first:
            run.restore(saved)
        while run.goes_on():

            def move(step: int, before: int = sum(steps[:number])) -> None:
                if progress is not None:
                    progress(before + step, sum(steps))

            log = run.epoch(checkpoints, move)
            if checkpoints is not None:
                checkpoints.save(run.state())
            if on_epoch is not None:
                on_epoch(log)
        kept = run.finish()
        logs = run.all_logs()
    return Trained(logs, kept)


class _StageRun:
    """The state of one stage, as in a checkpoint."""

    def __init__(
        self, task: Trainable, stage: PlannedStage, number: int, generator: torch.Generator, before: list[EpochLog]
    ) -> None:
        self.task, self.stage, self.number, self.generator = task, stage, number, generator
        self.recipe = stage.recipe
        self.before = before
        self.phases = [(phase, phase.parameters(task.module)) for phase in stage.phases]
        self.parameters = {name: p for _, chosen in self.phases for name, p in chosen.items()}
        for name, parameter in task.module.named_parameters():
            parameter.requires_grad_(name in self.parameters)
        shared = {phase: self.recipe.build(chosen, phase.undecayed) for phase, chosen in self.phases}
        self.optimizers = [shared[phase] for phase, _ in self.phases]
        self.logs: list[EpochLog] = []
        self.best: dict[str, torch.Tensor] = {}
        self.best_epoch = 0

    def all_logs(self) -> list[EpochLog]:
        return [*self.before, *self.logs]

    def goes_on(self) -> bool:
        """Whether there is an epoch left and patience has not run out."""
        in_vain = self.best_epoch > 0 and len(self.logs) - self.best_epoch >= self.recipe.patience
        return len(self.logs) < self.recipe.epochs and not in_vain

    def epoch(self, checkpoints: CheckpointFolder | None, move: Callable[[int], None]) -> EpochLog:
        """Train one epoch; keep the parameters if they are the best on validation."""
        began, epoch, size = time.perf_counter(), len(self.logs), self.task.size
        total = correct = 0.0
        logged: dict[str, float] = {}
        self.task.module.train()
        parts = torch.split(torch.randperm(size, generator=self.generator), self.recipe.batch_size)
        rate = self.recipe.rate(epoch)
        for position, indices in enumerate(parts):
            rate = self.recipe.rate(epoch + position / len(parts))
            for (phase, chosen), optimizer in zip(self.phases, self.optimizers):
                step = self.task.step(indices, epoch, phase.name, self.generator)
                loss = torch.stack(list(step.losses.values())).sum()
                if not torch.isfinite(loss):
                    raise self._not_finite(f"the loss became {loss.item()}", epoch, rate, checkpoints)
                self._update(loss, chosen, optimizer, rate)
                share = len(indices) / size
                total += float(loss.detach()) * share
                for name, value in step.logged.items():
                    logged[name] = logged.get(name, 0.0) + value * share
            correct += step.correct
            move(epoch * len(parts) + position + 1)
        if not all(torch.isfinite(p).all() for p in self.parameters.values()):
            raise self._not_finite("the parameters became NaN or infinite", epoch, rate, checkpoints)
        self.task.end_epoch(epoch + 1, self.recipe.epochs)
        accuracy, loss_value = self.task.validate() or (None, None)
        seconds = time.perf_counter() - began
        log = EpochLog(
            epoch + 1, rate, total, correct / size, accuracy, loss_value, logged, seconds, stage=self.number + 1
        )
        self._keep(log)
        return log

    def _update(
        self, loss: torch.Tensor, chosen: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, rate: float
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        if len(self.phases) == 1:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            # The other phases' parameters must not change or accumulate gradients.
            for parameter, gradient in zip(
                chosen.values(), torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
            ):
                parameter.grad = gradient
        if self.recipe.clip_norm:
            nn.utils.clip_grad_norm_(list(chosen.values()), self.recipe.clip_norm)
        optimizer.step()

    def _keep(self, log: EpochLog) -> None:
        self.logs.append(log)
        if not self.stage.keep_best or log.val_accuracy is None:
            return
        if self.best_epoch == 0 or log.quality > self.logs[self.best_epoch - 1].quality:
            self.best_epoch = log.epoch
            self.best = {name: p.detach().clone() for name, p in self.parameters.items()}

    def finish(self) -> int:
        """Restore the best epoch's parameters if validation chose one, and end the stage; returns the kept epoch."""
        kept = len(self.logs)
        if self.best:
            kept = self.best_epoch
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(self.best[name])
        self.task.end_stage(self.stage.phases[-1].name, self.generator)
        return kept

    def state(self) -> Checkpoint:
        module = self.task.module
        tensors: dict[str, torch.Tensor] = {f"parameter.{name}": p for name, p in module.named_parameters()}
        tensors |= {f"buffer.{name}": b for name, b in module.named_buffers()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for (phase, chosen), optimizer in zip(self.phases, self.optimizers):
            for name, parameter in chosen.items():
                for key, value in optimizer.state[parameter].items():
                    if value is not None:
                        tensors[f"optimizer.{phase.name}.{key}.{name}"] = value
        tensors["generator"] = self.generator.get_state()
        logs = [asdict(log) for log in self.all_logs()]
        values: dict[str, Any] = {"stage": self.number, "logs": logs, "best_epoch": self.best_epoch}
        return Checkpoint(len(logs), tensors, values)

    def restore(self, saved: Checkpoint) -> None:
        self.logs = [log for log in self.before if log.stage == self.number + 1]
        self.before = [log for log in self.before if log.stage <= self.number]
        self.best_epoch = int(saved.values["best_epoch"])
        self.generator.set_state(saved.tensors["generator"].cpu())
        module = self.task.module
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                tensor.copy_(saved.tensors[f"{kind}.{name}"])
        phases = {phase.name: optimizer for (phase, _), optimizer in zip(self.phases, self.optimizers)}
        for key, tensor in saved.tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "best":
                self.best[rest] = tensor.to(self.parameters[rest].device)
            elif kind == "optimizer":
                phase, entry, name = rest.split(".", 2)
                parameter = self.parameters[name]
                # Adam counts its steps on the host. A clone is aligned in memory as the original was, which can
                # decide the last bit of later sums; a tensor in a file need not be.
                device = tensor.device if entry == "step" else parameter.device
                phases[phase].state[parameter][entry] = tensor.to(device).clone()

    def _not_finite(self, what: str, epoch: int, rate: float, checkpoints: CheckpointFolder | None) -> TrainingError:
        stays = "" if checkpoints is None else f" {checkpoints.describe_last()}"
        return TrainingError(
            f"Training stopped: {what} in epoch {epoch + 1}, at a learning rate of {rate:g}.{stays} Use a lower "
            "learning rate, or weaker loss terms."
        )
