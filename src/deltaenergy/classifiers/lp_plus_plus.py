"""LP++: a linear probe whose weights blend images and class texts, class by class (Huang et al., CVPR 2024).

    logits_k = z · (w_k + α_k t_k),   loss mean_i CE,   s = logits / L

w (K, D) and α (K) are found by block coordinate descent over all images at once, with steps that majorisation gives
(no learning rate is chosen): in each of 300 rounds w moves, with momentum 0.9, by N·4/λ_max(ZᵀZ) times the gradient,
and in every tenth α by N/(4 max_k Σ_i (z_i·t_k)²) times its own. w starts at the sum of its class's features, and every
α at 250 times the mean over classes of the mean cosine of their images with their text.

As in the authors' code, with four differences. It has a trained bias with a random start; here there is none. It uses
one random view of each image; here the test view. It keeps the best round on validation; here the last round. It never
clears the gradient of α, which sums over all rounds; here it is that of the current round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Inputs, Outputs
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.zero_shot import FrozenTextClassifier, FrozenTextMethod
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count
from deltaenergy.models.base import Model

MOMENTUM = 0.9
FIRST_ALPHA = 250.0
ALPHA_EVERY = 10


class LpPlusPlusClassifier(FrozenTextClassifier):
    """Logits of blended weights, over L."""

    method: LpPlusPlus

    def __init__(self, model: Model, classes: Sequence[str], method: LpPlusPlus) -> None:
        super().__init__(model, classes, method)
        self.visual = nn.Parameter(torch.zeros_like(self.text_features))
        self.alpha = nn.Parameter(torch.zeros(len(self.classes), device=model.device))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        super().initialise(data, generator)
        visual, alpha = solve(data.mean_features(), data.labels, self.frozen_texts, self.method.rounds)
        self.visual.data.copy_(visual)
        self.alpha.data.copy_(alpha)

    def weights(self) -> torch.Tensor:
        """w_k + α_k t_k."""
        return self.visual + self.alpha[:, None] * self.frozen_texts

    def texts(self) -> torch.Tensor:
        return nn.functional.normalize(self.weights(), dim=-1)

    def forward(self, x: Inputs) -> Outputs:
        z = x.need(Need.FEATURES)
        return Outputs(self.patch_similarities(z), z, self.class_texts(z))

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        return patches @ self.weights().T.to(patches) / self.model.logit_scale


@register_method
@dataclass(frozen=True)
class LpPlusPlus(FrozenTextMethod):
    """`rounds` of the descent."""

    name = "lp++"
    summary = "a linear probe blended with the class texts by a learned share per class; needs no text encoder"
    formula = "CE(z·(w_k + α_k t_k), y), s = z·(w_k + α_k t_k)/L"
    paper = "Huang et al., CVPR 2024"
    classifier = LpPlusPlusClassifier
    augments = False
    trains = False
    rounds: Count = 300


def solve(
    features: torch.Tensor, labels: torch.Tensor, texts: torch.Tensor, rounds: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The class weights w (K, D) and shares α (K,) after all rounds, in double precision."""
    z, count = features.double(), len(labels)
    targets = nn.functional.one_hot(labels, len(texts)).to(z)
    cosines = z @ texts.double().T
    visual = targets.T @ z
    alpha = (FIRST_ALPHA * ((cosines * targets).sum(dim=0) / targets.sum(dim=0)).mean()).repeat(len(texts))
    step = 4 * count / torch.linalg.matrix_norm(z, 2) ** 2
    alpha_step = count / (4 * cosines.square().sum(dim=0).max())
    velocity = torch.zeros_like(visual)
    for number in range(1, rounds + 1):
        pull = (torch.softmax(z @ visual.T + alpha * cosines, dim=1) - targets) / count
        velocity = MOMENTUM * velocity + pull.T @ z
        visual = visual - step * velocity
        if number % ALPHA_EVERY == 0:
            alpha = alpha - alpha_step * (pull * cosines).sum(dim=0)
    return visual, alpha
