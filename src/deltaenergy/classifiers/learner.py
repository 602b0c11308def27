"""What a tuning method trains: a Learner on top of frozen towers, and the tuned Classifier it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Outputs
from deltaenergy.models.base import Model
from deltaenergy.tuning.data import Batch


class Learner(nn.Module, ABC):
    """Trainable parameters around a frozen model.

    Subclasses implement `forward` and `classifier`, and extend `losses` if their loss is more than cross-entropy.
    """

    def __init__(self, model: Model, classes: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.classes = tuple(classes)

    @abstractmethod
    def forward(self, batch: Batch) -> Outputs:
        """Similarities of a batch, with gradients to the parameters."""

    @abstractmethod
    def classifier(self) -> TunedClassifier:
        """The classifier with the parameters as they are now."""

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, torch.Tensor]:
        """The terms of the loss by name: cross-entropy of L · s."""
        return {"ce": nn.functional.cross_entropy(self.model.logit_scale * outputs.similarities, batch.labels)}


class TunedClassifier(Classifier):
    """A classifier that a tuning method made; it keeps which method, and how it was trained.

    Subclasses implement `settings` in place of `config`.
    """

    def __init__(self, model: Model, classes: Sequence[str]) -> None:
        super().__init__(model, classes)
        self.method = ""
        self.training: dict[str, Any] = {}

    def settings(self) -> dict[str, Any]:
        """What `from_state` needs besides classes and tensors, as JSON values."""
        return {}

    def config(self) -> dict[str, Any]:
        """Method, training record and settings."""
        return {"method": self.method, "training": self.training, **self.settings()}

    def restore(self, config: Mapping[str, Any]) -> None:
        """Take method and training record from a saved `config()`."""
        self.method = str(config["method"])
        self.training = dict(config["training"])


def linear_weight(rows: int, columns: int, generator: torch.Generator, device: torch.device) -> nn.Parameter:
    """A weight (rows, columns) ~ U(−1/√columns, 1/√columns), as torch's Linear begins, from our own generator."""
    bound = columns**-0.5
    return nn.Parameter(((torch.rand(rows, columns, generator=generator) * 2 - 1) * bound).to(device))
