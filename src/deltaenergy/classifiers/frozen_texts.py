"""What methods share that learn on top of fixed class texts: t⁰_k = norm(mean_m norm(text(template_m(name_k)))).

The text tower runs once, when training begins; stored class vectors serve as well (`PrecomputedModel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.classifiers.methods import Method, TrainViews
from deltaenergy.classifiers.zero_shot import CosineClassifier, class_features
from deltaenergy.core.classes import DEFAULT_TEMPLATE, Template
from deltaenergy.models.base import Model


class FrozenTextClassifier(CosineClassifier):
    """Keeps the class texts as the model gave them beside those that are learned from them.

    Attributes:
        frozen_texts: t⁰, unit text features (K, D).
    """

    method: FrozenTextMethod
    frozen_texts: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: FrozenTextMethod) -> None:
        super().__init__(model, classes, method)
        self.templates = method.templates
        self.register_buffer("frozen_texts", torch.zeros_like(self.text_features))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        self.frozen_texts.copy_(class_features(self.base_model, self.classes, self.templates))


@dataclass(frozen=True)
class FrozenTextMethod(Method):
    """Base of the methods that learn on top of fixed class texts, from one template or several."""

    quick = True
    templates: tuple[Template, ...] = (DEFAULT_TEMPLATE,)
