"""CoCoOp: a context that each image shifts (Zhou et al., Conditional Prompt Learning, CVPR 2022).

    v_m(z) = v_m + π(z),   π(z) = W2 relu(W1 z + b1) + b2  (D → D/16 → W),   s_k = z · t_k(v(z))

Every image has its own text features. The shared prefix is then per image, and still serves all its classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Inputs, Outputs
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.prompt import PromptClassifier, PromptMethod
from deltaenergy.classifiers.randomness import set_linear
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count
from deltaenergy.models.base import Model

REDUCTION = 16
# Images whose text features are computed together in evaluation; each has K of them.
IMAGES_AT_ONCE = 16


class CoCoOpClassifier(PromptClassifier):
    """Text features are computed for each image, so similarities cost a run of the text tower per image."""

    neutral: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: CoCoOp) -> None:
        super().__init__(model, classes, method)
        width, dim = self.tower.width, model.feature_dim
        hidden = max(1, dim // REDUCTION)
        self.w1, self.b1 = nn.Parameter(torch.zeros(hidden, dim)), nn.Parameter(torch.zeros(hidden))
        self.w2, self.b2 = nn.Parameter(torch.zeros(width, hidden)), nn.Parameter(torch.zeros(width))
        self.register_buffer("neutral", torch.zeros(dim))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Context and network; the mean training image stands for the neutral one."""
        super().initialise(data, generator)
        set_linear(generator, self.w1, self.w2)
        self.neutral.copy_(nn.functional.normalize(data.mean_features().mean(dim=0), dim=0))

    def contexts(self, features: torch.Tensor) -> torch.Tensor:
        """Contexts v + π(z), one per image: (N, M, W)."""
        features = features.to(self.w1)
        shift = torch.relu(features @ self.w1.T + self.b1) @ self.w2.T + self.b2
        return self.context + shift[:, None, :]

    def texts(self) -> torch.Tensor:
        """The text features (K, D) for the neutral image."""
        return self.prompts.each(self.contexts(self.neutral[None]))[0]

    def forward(self, x: Inputs) -> Outputs:
        """Cosines of each image with the text features of its own context."""
        features = x.need(Need.FEATURES)
        if self.training:
            texts = self.prompts.each(self.contexts(features))
            return Outputs(torch.einsum("bd,bkd->bk", features, texts), features, texts)
        similarities = [features.new_zeros(0, len(self.classes))]
        for block in torch.split(features, IMAGES_AT_ONCE) if len(features) else ():
            texts = self.prompts.each(self.contexts(block)).to(block)
            similarities.append(torch.einsum("bd,bkd->bk", block, texts))
        return Outputs(torch.cat(similarities), features, self.text_features.to(features))


@register_method
@dataclass(frozen=True)
class CoCoOp(PromptMethod):
    """Four context vectors initialised as "a photo of a", and a small network that shifts them."""

    name = "cocoop"
    summary = "a learned context that a small network shifts for each image"
    formula = "CE(L·z·t_k(v + π(z)), y), π(z) = W2 relu(W1 z)"
    paper = "Zhou et al., CVPR 2022"
    classifier = CoCoOpClassifier
    class_specific: Literal[False] = False  # the image, not the class, shifts the context
    context_length: Count = 4
    context_init: str = "a photo of a"
