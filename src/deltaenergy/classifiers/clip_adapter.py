"""CLIP-Adapter: a small residual network on the image feature (Gao et al., IJCV 2024).

z' = norm(α A(z) + (1 − α) z),   A(z) = relu(W2 relu(W1 z))  (D → D/4 → D, no bias),   s_k = z' · t_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.base import Inputs
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.randomness import set_linear
from deltaenergy.classifiers.zero_shot import TemplateClassifier, TemplateMethod
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Share
from deltaenergy.models.base import Model

REDUCTION = 4


class ClipAdapterClassifier(TemplateClassifier):
    """Cosines of adapted image features with the class texts."""

    method: ClipAdapter
    takes_other_classes = True

    def __init__(self, model: Model, classes: Sequence[str], method: ClipAdapter) -> None:
        super().__init__(model, classes, method)
        dim, hidden = model.feature_dim, max(1, model.feature_dim // REDUCTION)
        self.w1, self.w2 = nn.Parameter(torch.zeros(hidden, dim)), nn.Parameter(torch.zeros(dim, hidden))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        super().initialise(data, generator)
        set_linear(generator, self.w1, self.w2)

    def image_features(self, x: Inputs) -> torch.Tensor:
        z, alpha = x.need(Need.FEATURES), self.method.alpha
        adapted = torch.relu(torch.relu(z @ self.w1.T.to(z)) @ self.w2.T.to(z))
        return nn.functional.normalize(alpha * adapted + (1 - alpha) * z, dim=-1)


@register_method
@dataclass(frozen=True)
class ClipAdapter(TemplateMethod):
    """α is the adapter's share; the class texts are those of the template."""

    name = "clip-adapter"
    summary = "a small residual network on the image feature"
    formula = "CE(L·z'·t_k, y), z' = norm(α relu(W2 relu(W1 z)) + (1−α) z)"
    paper = "Gao et al., IJCV 2024"
    classifier = ClipAdapterClassifier
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.1, 0.2, 0.5, 0.8)}
    alpha: Share = 0.2
