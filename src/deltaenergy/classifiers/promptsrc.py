"""PromptSRC: prompts in both towers, kept near the frozen model (Khattak et al., ICCV 2023).

    L = CE(L · z·t, y) + 25 · mean_{k,d} |t − t⁰| + 10 · mean_{i,d} |z − z⁰| + KL(p⁰ ‖ p) / K

t⁰ is the frozen text of 60 templates (their mean before normalisation), z⁰ the frozen feature of the same view, p and
p⁰ are the softmax of L · z·t and L · z⁰·t⁰. What is served is an average over the epochs e = 1 … E,

    θ = Σ_e w_e θ_e,   w_e ∝ exp(−½ ((e − μ)/σ)²),   μ and σ given as shares of E

KL is the mean over images. The released code also divides it by the number of classes K; `kl=batch` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.image_tokens import WORDS, TokenClassifier, TokenMethod
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.core.classes import fill
from deltaenergy.core.specs import CountOrZero, NonNegative, Positive
from deltaenergy.data.catalogue.class_names import template_ensemble
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_vision
from deltaenergy.models.towers.text import TextTower

# The released list is that of the first 60 of CLIP's 80 templates for ImageNet.
TEMPLATES = 60


class PromptSrcClassifier(TokenClassifier):
    """Independent prompts in both towers, regularised, and averaged over the epochs."""

    method: PromptSrc
    keeps_best_epoch = False
    frozen_texts: torch.Tensor
    seen_weight: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: PromptSrc) -> None:
        super().__init__(model, classes, method)
        if method.vision_tokens:
            width = require_vision(model, method.name).width
            self.tokens = nn.Parameter(torch.zeros(self.depth, method.vision_tokens, width))
        # What only training needs is part of its checkpoints, not of the saved classifier.
        self.register_buffer("frozen_texts", torch.zeros_like(self.text_features), persistent=False)
        self.register_buffer("seen_weight", torch.zeros((), dtype=torch.float64), persistent=False)
        for name, parameter in list(self.named_parameters()):
            self.register_buffer(f"sum_of_{name}", torch.zeros_like(parameter), persistent=False)
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Contexts, tokens ~ N(0, 0.02²), and the frozen texts."""
        self.start_contexts(generator)
        if self.method.vision_tokens:
            set_normal(generator, self.tokens)
        self.frozen_texts.copy_(frozen_texts(self.tower, self.classes))

    def image_tokens(self) -> torch.Tensor | None:
        return self.tokens if self.method.vision_tokens else None

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy, and how far texts, features and probabilities are from the frozen model's."""
        if batch.frozen is None:
            raise InputError("promptsrc needs the frozen model's features of the same views.")
        method, scale = self.method, self.model.logit_scale
        log_p = torch.log_softmax(scale * outputs.similarities, dim=1)
        frozen_log_p = torch.log_softmax(scale * batch.frozen @ self.frozen_texts.T, dim=1)
        kl = nn.functional.kl_div(log_p, frozen_log_p, log_target=True, reduction="batchmean")
        return {
            **super().losses(outputs, batch),
            "|t−t⁰|": method.text_weight * (outputs.texts - self.frozen_texts).abs().mean(),
            "|z−z⁰|": method.image_weight * (outputs.features - batch.frozen).abs().mean(),
            "KL": method.kl_weight * (kl if method.kl == "batch" else kl / len(self.classes)),
        }

    def end_epoch(self, epoch: int, epochs: int) -> None:
        weight = epoch_weights(epochs, *self.method.gpa)[epoch - 1]
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                self.get_buffer(f"sum_of_{name}").add_(parameter, alpha=weight)
            self.seen_weight += weight

    def end_stage(self) -> None:
        """Use the average of the epochs; if all weights are zero, the last epoch."""
        if self.seen_weight == 0:
            return
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(self.get_buffer(f"sum_of_{name}") / self.seen_weight)


@register_method
@dataclass(frozen=True)
class PromptSrc(TokenMethod):
    """`gpa` holds μ and σ of the average as shares of the epochs; `vision_tokens` 0 learns only texts.

    The presets are the released settings: few-shot (the default), fine-grained for datasets such as cars, flowers,
    aircraft, textures and land use, and base-to-new for other classes than those trained on.
    """

    name = "promptsrc"
    summary = "deep prompts in both encoders, kept near the frozen model and averaged over the epochs"
    formula = "CE + 25·mean|t−t⁰| + 10·mean|z−z⁰| + KL(p⁰‖p)/K, served: Σ_e w_e θ_e"
    paper = "Khattak et al., ICCV 2023"
    classifier = PromptSrcClassifier
    recipe: ClassVar[Mapping[str, Any]] = {"lr": 0.0025, "batch_size": 4, "epochs": 50}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"gpa": ((0.6, 0.6), (0.9, 0.1))}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "few-shot": {"gpa": (0.6, 0.6)},
        "fine-grained": {"gpa": (0.9, 0.1)},
        "base-to-new": {"gpa": (0.75, 0.05)},
    }
    vision_tokens: CountOrZero = 4
    text_weight: NonNegative = 25.0
    image_weight: NonNegative = 10.0
    kl_weight: NonNegative = 1.0
    kl: Literal["classes", "batch"] = "classes"
    gpa: tuple[NonNegative, Positive] = (0.6, 0.6)

    @property
    def context_length(self) -> int:
        """The context starts as "a photo of a"."""
        return len(WORDS)

    @property
    def tokens_of_image(self) -> int:
        return self.vision_tokens


def frozen_texts(tower: TextTower, classes: Sequence[str]) -> torch.Tensor:
    """t⁰ (K, D): the mean of the templates' vectors before normalisation, finished like any other text."""
    templates = template_ensemble("imagenet")[:TEMPLATES]
    prompts = [fill(template, name) for name in classes for template in templates]
    vectors = tower.project(prompts).view(len(classes), len(templates), -1).mean(dim=1)
    # A clone, because what comes out of inference mode cannot take part in training.
    return tower.finish(vectors.clone()).detach()


def epoch_weights(epochs: int, mean: float, deviation: float) -> list[float]:
    """w_1 … w_E, which sum to one; `mean` and `deviation` are shares of E."""
    numbers = torch.arange(1, epochs + 1, dtype=torch.float64)
    # The softmax of the exponents, so the nearest epoch counts even if σ is tiny.
    weights: list[float] = torch.softmax(-0.5 * ((numbers / epochs - mean) / deviation) ** 2, dim=0).tolist()
    return weights
