"""PLOT++: several image features, matched with several texts by optimal transport (by the authors of PLOT, 2023).

    z_m = image(x, p_m),   b_k = Σ_mn T_mn z_m·t_kn,   a_k = z̄·t̄_k,   s_k = b_k

Each of M prompts p_m (two tokens at the end of the image tower's input) gives an image feature z_m by its own run of
the tower. T transports them to the texts t_kn of N contexts, as in PLOT; z̄ and t̄_k are the unit means before
normalisation. First only the tokens are trained, by CE of L (a + b), then tokens and contexts by CE of L · b.

The contexts start as phrases. The released code cuts all of them to the length of the first, so a shorter one includes
the first token of every class name; here each has its own length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.base import Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.estimate import CostEstimate
from deltaenergy.classifiers.image_tokens import image_tower_estimate
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.classifiers.plot import TextsClassifier, transported
from deltaenergy.classifiers.randomness import set_normal
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Positive, Words
from deltaenergy.models.base import Model, require_text, require_vision
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.vision import VisionTower
from deltaenergy.training.recipe import Phase, Recipe, Stage

PHRASES = ("a photo of a", "this is a photo", "this is a", "one picture of a")
TOKENS_FIRST = "tokens"


class PlotPlusClassifier(TextsClassifier):
    """Every image is encoded with several prompts, so plain features are not enough."""

    method: PlotPlus
    needs_to_predict = frozenset({Need.PIXELS})

    def __init__(self, model: Model, classes: Sequence[str], method: PlotPlus) -> None:
        super().__init__(model, classes, method)
        vision = require_vision(model, method.name)
        self.raw_vision = shared_budget(vision, method.prompts)
        self.finish_image = vision.finish
        self.tokens = nn.Parameter(torch.zeros(method.prompts, method.tokens, vision.width))
        self.phrases = self.tower.words(method.phrases)
        self.prompts = [LearnedPrompts(self.raw_tower, self.classes, len(ids)) for ids in self.phrases]
        self.contexts = nn.ParameterList(torch.zeros(len(ids), self.tower.width) for ids in self.phrases)
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Contexts as words, tokens ~ N(0, 0.02²)."""
        for context, ids in zip(self.contexts, self.phrases):
            context.data.copy_(self.tower.embed(ids))
        set_normal(generator, self.tokens)

    def raw_texts(self) -> torch.Tensor:
        """One text per phrase and class."""
        return torch.stack([prompts(context) for prompts, context in zip(self.prompts, self.contexts)])

    def forward(self, x: Inputs) -> Outputs:
        """The value of the transport of image features to texts; ½ (a + b) while only the tokens are trained."""
        pixels = x.need(Need.PIXELS)
        raw = torch.stack([self.raw_vision.run(pixels, tokens[None]).features for tokens in self.tokens], dim=1)
        features, mean = self.finish_image(raw), self.finish_image(raw.mean(dim=1))
        texts, pooled = (part.to(features) for part in self.all_texts())
        carried = transported(torch.einsum("bmd,nkd->bkmn", features, texts), self.method.epsilon)
        if self.phase == TOKENS_FIRST:
            carried = (mean @ pooled.T + carried) / 2
        return Outputs(carried, mean, pooled)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy at L of b, or of a + b while only the tokens are trained."""
        factor = 2 if self.phase == TOKENS_FIRST else 1
        return {"ce": self.cross_entropy(factor * outputs.similarities, batch.labels)}


@register_method
@dataclass(frozen=True)
class PlotPlus(Method):
    """`prompts` is M, the number of runs of the image tower per image; `phrases` initialise the N contexts."""

    name = "plot++"
    summary = "several prompted image features, matched with several texts by optimal transport"
    formula = "CE(L·Σ_mn T_mn z_m·t_kn, y), T the transport plan with entropy ε"
    paper = "Chen et al., ICLR 2023, and PLOT++ of its authors"
    classifier = PlotPlusClassifier
    needs_to_train = frozenset({Need.PIXELS})
    recipe: ClassVar[Mapping[str, Any]] = {"epochs": 50}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"epsilon": (0.05, 0.1)}
    prompts: Count = 4
    tokens: Count = 2
    phrases: tuple[Words, ...] = PHRASES
    epsilon: Positive = 0.1

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Only tokens, then tokens and contexts, with the same recipe."""
        return (Stage((Phase(TOKENS_FIRST, ("tokens",)),)), Stage((Phase("both"),)))

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of all runs of the image tower."""
        require_text(model, self.name)
        vision = shared_budget(require_vision(model, self.name), self.prompts)
        return image_tower_estimate(vision, self.tokens, self.prompts, images, recipes)


def shared_budget(vision: VisionTower, runs: int) -> VisionTower:
    """The tower without its last step, with the activation budget divided among the runs.

    The mean over features is taken before normalisation.
    """
    budget = vision.activation_budget // runs
    return VisionTower(vision.transformer, vision.projection, finish=torch.Tensor.float, activation_budget=budget)
