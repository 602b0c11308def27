"""CLIP-Adapter: a small residual network on the image feature (Gao et al., IJCV 2024).

z' = norm(α A(z) + (1 − α) z),   A(z) = relu(W2 relu(W1 z))  (D → D/4 → D, no bias),   s_k = z' · t_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classes import DEFAULT_TEMPLATE, check_templates
from deltaenergy.classifiers.base import Classifier, Outputs, register_classifier
from deltaenergy.classifiers.learner import Learner, TunedClassifier, linear_weight
from deltaenergy.classifiers.methods import Method, check_number, register_method
from deltaenergy.classifiers.zero_shot import class_features
from deltaenergy.models.base import Model
from deltaenergy.tuning.data import Batch, TrainImages

REDUCTION = 4


@register_method
@dataclass(frozen=True)
class ClipAdapter(Method):
    """α is the adapter's share; the class texts are those of the template."""

    name = "clip-adapter"
    summary = "a small residual network on the image feature"
    formula = "CE(L·z'·t_k, y), z' = norm(α relu(W2 relu(W1 z)) + (1−α) z)"
    paper = "Gao et al., IJCV 2024"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.1, 0.2, 0.5, 0.8)}
    alpha: float = 0.2
    template: str = DEFAULT_TEMPLATE

    def check(self) -> None:
        """0 ≤ α ≤ 1; a template with one {}."""
        check_number("clip-adapter", "alpha", self.alpha, 0, 1)
        check_templates(self.template, None)

    def learner(self, model: Model, classes: Sequence[str], data: TrainImages, generator: torch.Generator) -> Learner:
        """Two random matrices."""
        return ClipAdapterLearner(model, classes, self, generator)


class ClipAdapterLearner(Learner):
    """W1 and W2."""

    def __init__(self, model: Model, classes: Sequence[str], method: ClipAdapter, generator: torch.Generator) -> None:
        super().__init__(model, classes)
        dim, hidden = model.feature_dim, max(1, model.feature_dim // REDUCTION)
        self.w1 = linear_weight(hidden, dim, generator, model.device)
        self.w2 = linear_weight(dim, hidden, generator, model.device)
        self.alpha = method.alpha
        self.texts = class_features(model, self.classes, [method.template])

    def forward(self, batch: Batch) -> Outputs:
        """Cosines of the adapted features."""
        features = adapt(batch.features, self.w1, self.w2, self.alpha)
        return Outputs(features @ self.texts.T, features, self.texts)

    def classifier(self) -> ClipAdapterClassifier:
        """A copy of the present matrices."""
        w1, w2 = self.w1.detach().clone(), self.w2.detach().clone()
        return ClipAdapterClassifier(self.model, self.classes, self.texts, w1, w2, self.alpha)


def adapt(features: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, alpha: float) -> torch.Tensor:
    """Adapted features z' = norm(α relu(W2 relu(W1 z)) + (1 − α) z)."""
    adapted = torch.relu(torch.relu(features @ w1.T) @ w2.T)
    return nn.functional.normalize(alpha * adapted + (1 - alpha) * features, dim=-1)


@register_classifier
class ClipAdapterClassifier(TunedClassifier):
    """Cosines of adapted image features with the class texts."""

    kind = "clip-adapter"

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        text_features: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        alpha: float,
    ) -> None:
        super().__init__(model, classes)
        self._text_features = text_features.to(model.device)
        self._w1, self._w2 = w1.to(model.device), w2.to(model.device)
        self.alpha = alpha

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D) of the template."""
        return self._text_features

    def adapted_features(self, features: torch.Tensor) -> torch.Tensor:
        """Adapted features z' (N, D)."""
        return adapt(features, self._w1.to(features), self._w2.to(features), self.alpha)

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (N, K) of z'."""
        return self.adapted_features(features) @ self._text_features.T.to(features)

    def settings(self) -> dict[str, Any]:
        """The adapter's share."""
        return {"alpha": self.alpha}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Texts and adapter."""
        return {"text_features": self._text_features, "w1": self._w1, "w2": self._w2}

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> Classifier:
        """A saved classifier."""
        classifier = cls(model, classes, tensors["text_features"], tensors["w1"], tensors["w2"], float(config["alpha"]))
        classifier.restore(config)
        return classifier
