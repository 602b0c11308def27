"""Tip-Adapter: the training images as a cache of keys and one-hot values (Zhang et al., ECCV 2022).

    logits = L · z·t_k + α · exp(−β (1 − z Fᵀ)) Y,   F the training features (N, D), Y their classes (N, K)

`tip-adapter` needs no training; `tip-adapter-f` trains F. Similarities are the logits divided by L.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from deltaenergy.classifiers.base import Inputs, Outputs
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.zero_shot import TemplateClassifier, TemplateMethod
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import NonNegative
from deltaenergy.errors import ArtifactError
from deltaenergy.models.base import Model


class TipAdapterClassifier(TemplateClassifier):
    """Cosines plus the cache's output, both in units of 1/L."""

    method: TipAdapter
    labels: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: TipAdapter) -> None:
        super().__init__(model, classes, method)
        self._make_room(0)

    def _make_room(self, images: int) -> None:
        device = self.model.device
        self.keys = nn.Parameter(torch.zeros(images, self.model.feature_dim, device=device))
        self.register_buffer("labels", torch.zeros(images, dtype=torch.long, device=device))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Keys are the mean features over each image's views."""
        super().initialise(data, generator)
        self._make_room(len(data.labels))
        self.keys.data.copy_(data.mean_features())
        self.labels.copy_(data.labels)

    def forward(self, x: Inputs) -> Outputs:
        z, texts = x.need(Need.FEATURES), self.class_texts(x.need(Need.FEATURES))
        affinity = torch.exp(-self.method.beta * (1 - z @ self.keys.T.to(z)))
        one_hot = nn.functional.one_hot(self.labels, len(self.classes)).to(z)
        cached = self.method.alpha * affinity @ one_hot
        return Outputs(z @ texts.T + cached / self.model.logit_scale, z, texts)

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        """With as many keys as were saved."""
        if "labels" in tensors and tensors["labels"].ndim == 1:
            self._make_room(len(tensors["labels"]))
        restored = super().restore(tensors)
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ArtifactError(f"{self.method.name}: a saved label is outside the {len(self.classes)} classes.")
        return restored


@register_method
@dataclass(frozen=True)
class TipAdapter(TemplateMethod):
    """α weighs the cache, β sharpens it; keys are mean features over the training views."""

    name = "tip-adapter"
    summary = "the training images as a cache next to the class texts, without training"
    formula = "L·z·t + α exp(−β(1 − zFᵀ))Y"
    paper = "Zhang et al., ECCV 2022"
    classifier = TipAdapterClassifier
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "alpha": (0.1, 0.5, 1.0, 2.0, 3.0),
        "beta": (1.0, 2.0, 3.5, 5.5, 7.0),
    }
    trains = False
    alpha: NonNegative = 1.0
    beta: NonNegative = 5.5


@register_method
@dataclass(frozen=True)
class TipAdapterF(TipAdapter):
    """The paper trains the keys with AdamW, rate 0.001, for 20 epochs in batches of 256, without warm-up."""

    name = "tip-adapter-f"
    summary = "tip-adapter with trained keys"
    formula = "CE(L·z·t + α exp(−β(1 − zFᵀ))Y, y), F trained"
    trains = True
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adamw",
        "lr": 0.001,
        "weight_decay": 0.01,
        "eps": 1e-4,
        "epochs": 20,
        "batch_size": 256,
        "warmup_epochs": 0,
    }
