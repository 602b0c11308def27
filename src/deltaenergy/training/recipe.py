"""How a method is trained: the recipe of the CoOp family, and stages for methods that train in several parts.

SGD with rate 0.002, momentum 0.9 and weight decay 5e-4 in batches of 32; one warm-up epoch at 1e-5, then

    rate(e) = ½ · 0.002 · (1 + cos(π (e − w) / E)),   w warm-up epochs, E epochs in all

as in Dassl, on which CoOp's code runs: with w = 1 the last epoch is one step before the end of the cosine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from deltaenergy.core.specs import Bounded, Count, CountOrZero, NonNegative, Positive
from deltaenergy.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Recipe(Bounded):
    """How to train.

    Attributes:
        schedule: cosine decreases per epoch, cosine-steps per step; constant does not.
        eps: of Adam and AdamW.
        clip_norm: maximum norm of the gradient; 0 for no limit.
        patience: stop after this many epochs without a better validation accuracy.
    """

    epochs: Count = 30
    lr: Positive = 0.002
    batch_size: Count = 32
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 5e-4
    warmup_epochs: CountOrZero = 1
    warmup_lr: NonNegative = 1e-5
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: Literal["cosine", "cosine-steps", "constant"] = "cosine"
    eps: Positive = 1e-8
    clip_norm: NonNegative = 0.0
    patience: Count = 10

    def rate(self, epoch: float) -> float:
        """The learning rate in an epoch, counted from 0; it changes within one only if the schedule goes by steps."""
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        if self.schedule == "constant":
            return self.lr
        reached = epoch if self.schedule == "cosine-steps" else math.floor(epoch)
        return 0.5 * self.lr * (1 + math.cos(math.pi * (reached - self.warmup_epochs) / self.epochs))

    def build(self, parameters: Mapping[str, nn.Parameter], undecayed: tuple[str, ...] = ()) -> torch.optim.Optimizer:
        """The optimiser, without weight decay for parameters whose names start with one of `undecayed`."""
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, parameter in parameters.items():
            (free if name.startswith(undecayed) else decayed).append(parameter)
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": self.weight_decay}]
        if free:
            groups.append({"params": free, "weight_decay": 0.0})
        if self.optimizer == "adam":
            return torch.optim.Adam(groups, lr=self.lr, eps=self.eps)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, eps=self.eps)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True)
class Phase:
    """One update of some parameters. Each step runs the phases of a stage in order, each with its own loss; a phase
    listed several times runs several times, with one optimiser.

    `trains` are prefixes of parameter names; if empty, all parameters are trained. `undecayed` are prefixes of
    parameters without weight decay.
    """

    name: str = "train"
    trains: tuple[str, ...] = ()
    undecayed: tuple[str, ...] = ()

    def parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of `module` that this phase trains."""
        chosen = {n: p for n, p in module.named_parameters() if not self.trains or n.startswith(self.trains)}
        if not chosen:
            raise ValueError(f"phase {self.name!r} trains nothing: no parameter starts with {self.trains}")
        return chosen


@dataclass(frozen=True)
class Stage:
    """A part of the training with its own parameters, losses and recipe; `recipe` has the changes.

    `keep_best`: whether the epoch with the best validation accuracy is kept; not possible if the stage trains nothing
    that similarities depend on.
    """

    phases: tuple[Phase, ...] = (Phase(),)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    keep_best: bool = True


def make_recipe(*changes: Mapping[str, Any]) -> Recipe:
    """The common recipe with changes, later changes on top; an unknown field is an error."""
    merged: dict[str, Any] = {}
    for change in changes:
        merged.update(change)
    known = [one.name for one in dataclasses.fields(Recipe)]
    for name in merged:
        if name not in known:
            raise InputError(f"The recipe has no field {name!r}.{did_you_mean(name, known)}")
    return Recipe(**merged)
