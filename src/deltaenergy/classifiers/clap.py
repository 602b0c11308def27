"""CLAP: a linear probe that starts at the class texts and is kept near them (Silva-Rodríguez et al., CVPR 2024).

    t_k = norm(w_k),   s_k = z · t_k,   loss CE(L s, y) + (1/K) Σ_k λ_k ‖w_k − ℓ t⁰_k‖²,   w starts as ℓ t⁰
    λ_k = mean over the images of class k of softmax(L z·t⁰)_k

The multiplier of a class is how well zero-shot knows it: classes with good texts stay near them, others are learned. λ
comes from one outer step of the augmented Lagrangian on the training images and stays fixed, as in the authors'
experiments, so no validation images are needed. They use w before normalisation, with a length of about ten in CLIP;
stored texts have unit length, and ℓ restores it. λ is taken from the mean feature of each image's views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.zero_shot import FrozenTextClassifier, FrozenTextMethod
from deltaenergy.core.specs import Positive
from deltaenergy.models.base import Model


class ClapClassifier(FrozenTextClassifier):
    """Cosines with class texts moved as far as their multipliers allow."""

    method: Clap
    multipliers: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: Clap) -> None:
        super().__init__(model, classes, method)
        self.prototypes = nn.Parameter(torch.zeros_like(self.text_features))
        self.register_buffer("multipliers", torch.zeros(len(self.classes), device=model.device))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Prototypes at the texts, multipliers from zero-shot on the training images."""
        super().initialise(data, generator)
        self.prototypes.data.copy_(self.method.length * self.frozen_texts)
        features, labels = data.mean_features(), data.labels
        probabilities = torch.softmax(self.model.logit_scale * features @ self.frozen_texts.T, dim=1)
        of_own_class = probabilities[torch.arange(len(labels), device=labels.device), labels]
        sums = torch.zeros_like(self.multipliers).index_add_(0, labels, of_own_class)
        self.multipliers.copy_(sums / torch.bincount(labels, minlength=len(self.classes)))

    def texts(self) -> torch.Tensor:
        return nn.functional.normalize(self.prototypes, dim=-1)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy, and the weighted distance from the texts."""
        moved = (self.prototypes - self.method.length * self.frozen_texts).square().sum(dim=1)
        return {**super().losses(outputs, batch), "λ‖w−t‖²": (self.multipliers * moved).mean()}


@register_method
@dataclass(frozen=True)
class Clap(FrozenTextMethod):
    """ℓ is `length`; the larger it is, the nearer to the texts the probe stays.

    The paper trains with SGD at rate 0.1 for 300 epochs in batches of 256.
    """

    name = "clap"
    summary = "a linear probe from the class texts, kept near them class by class; needs no text encoder"
    formula = "CE(L·z·t_k, y) + (1/K)Σ λ_k‖w_k − ℓ t⁰_k‖², t_k = norm(w_k), λ_k zero-shot's mean probability"
    paper = "Silva-Rodríguez et al., CVPR 2024"
    classifier = ClapClassifier
    takes_terms = True
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"length": (1.0, 3.0, 10.0)}
    recipe: ClassVar[Mapping[str, Any]] = {"lr": 0.1, "weight_decay": 0.0, "epochs": 300, "batch_size": 256}
    length: Positive = 10.0
