"""Tip-Adapter: the training images as a cache of keys and one-hot values (Zhang et al., ECCV 2022).

    logits = L · z·t_k + α · exp(−β (1 − z Fᵀ)) Y,   F the training features (N, D), Y their classes (N, K)

`tip-adapter` needs no training; `tip-adapter-f` trains F. Similarities are the logits divided by L.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classes import DEFAULT_TEMPLATE, check_templates
from deltaenergy.classifiers.base import Classifier, Outputs, register_classifier
from deltaenergy.classifiers.learner import Learner, TunedClassifier
from deltaenergy.classifiers.methods import Method, check_number, register_method
from deltaenergy.classifiers.zero_shot import class_features
from deltaenergy.models.base import Model
from deltaenergy.tuning.data import Batch, TrainImages


@register_method
@dataclass(frozen=True)
class TipAdapter(Method):
    """α weighs the cache, β sharpens it; keys are mean features over the training views."""

    name = "tip-adapter"
    summary = "the training images as a cache beside the class texts, without training"
    formula = "L·z·t + α exp(−β(1 − zFᵀ))Y"
    paper = "Zhang et al., ECCV 2022"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "alpha": (0.1, 0.5, 1.0, 2.0, 3.0),
        "beta": (1.0, 2.0, 3.5, 5.5, 7.0),
    }
    trains = False
    alpha: float = 1.0
    beta: float = 5.5
    template: str = DEFAULT_TEMPLATE

    def check(self) -> None:
        """α ≥ 0, β ≥ 0; a template with one {}."""
        check_number(self.name, "alpha", self.alpha, 0)
        check_number(self.name, "beta", self.beta, 0)
        check_templates(self.template, None)

    def learner(self, model: Model, classes: Sequence[str], data: TrainImages, generator: torch.Generator) -> Learner:
        """The cache as it is."""
        return TipAdapterLearner(model, classes, self, data)


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
        "epochs": 20,
        "batch_size": 256,
        "warmup_epochs": 0,
    }


class TipAdapterLearner(Learner):
    """The keys F."""

    def __init__(self, model: Model, classes: Sequence[str], method: TipAdapter, data: TrainImages) -> None:
        super().__init__(model, classes)
        self.keys = nn.Parameter(data.mean_features().float().clone())
        self.labels = data.labels
        self.method = method
        self.texts = class_features(model, self.classes, [method.template])

    def forward(self, batch: Batch) -> Outputs:
        """Cosines plus the cache's answer over L."""
        cached = from_cache(batch.features, self.keys, self.labels, len(self.classes), self.method)
        similarities = batch.features @ self.texts.T + cached / self.model.logit_scale
        return Outputs(similarities, batch.features, self.texts)

    def classifier(self) -> TipAdapterClassifier:
        """A copy of the present keys."""
        keys = self.keys.detach().clone()
        return TipAdapterClassifier(self.model, self.classes, self.texts, keys, self.labels, self.method)


def from_cache(
    features: torch.Tensor, keys: torch.Tensor, labels: torch.Tensor, classes: int, method: TipAdapter
) -> torch.Tensor:
    """α exp(−β (1 − z Fᵀ)) Y: (B, K)."""
    affinity = torch.exp(-method.beta * (1 - features @ keys.T))
    one_hot = nn.functional.one_hot(labels, classes).to(affinity)
    return method.alpha * affinity @ one_hot


@register_classifier
class TipAdapterClassifier(TunedClassifier):
    """Cosines plus the cache's answer, both in units of 1/L."""

    kind = "tip-adapter"

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        text_features: torch.Tensor,
        keys: torch.Tensor,
        labels: torch.Tensor,
        cache: TipAdapter,
    ) -> None:
        super().__init__(model, classes)
        self._text_features = text_features.to(model.device)
        self._keys = keys.to(model.device)
        self._labels = labels.to(model.device)
        self._cache = cache

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D) of the template."""
        return self._text_features

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Logits over L: (N, K)."""
        cached = from_cache(features, self._keys.to(features), self._labels, len(self.classes), self._cache)
        return features @ self._text_features.T.to(features) + cached / self.model.logit_scale

    def settings(self) -> dict[str, Any]:
        """α and β."""
        return {"alpha": self._cache.alpha, "beta": self._cache.beta}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Texts, keys and their classes."""
        return {"text_features": self._text_features, "keys": self._keys, "labels": self._labels}

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> Classifier:
        """A saved classifier."""
        cache = TipAdapter(alpha=float(config["alpha"]), beta=float(config["beta"]))
        classifier = cls(model, classes, tensors["text_features"], tensors["keys"], tensors["labels"], cache)
        classifier.restore(config)
        return classifier
