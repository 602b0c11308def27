"""NegPrompt: contexts that turn every class name into what the class is not (Li et al., CVPR 2024).

    positives   t_k = text([start] v [name_k] [end]), learned first, as in coop, and then frozen
    negatives   n_km = text([start] u_m [name_k] [end]), m = 1..2, contexts that all classes share
    L = mean_i [lse_j(L z_i·n_j) − mean_j L z_i·n_j] − 0.1 mean cos(n_km, t_k) + 0.05 mean_{m≠m'} cos(n_km, n_km')

The first term is the cross-entropy to the uniform distribution over all 2K negatives: no image may prefer one. The
second keeps each negative near its class, the third keeps the negatives of a class apart. Negatives start as the
learned positive with a little noise; without it they would stay equal forever. The score is `negprompt`.

`separation=ce` makes negatives wrong answers in the cross-entropy of all texts, and pushes them away from the class.
`as_released` is the released default: a multi-label soft margin over the 3K texts with the label's three columns as
targets, −0.1 mean(1 − cos(t, n)), and 0.05 mean_k(‖mean_m n_km‖ − 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.classifiers.prompt import initial_context
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, NonNegative, Words
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import Phase, Stage

POSITIVES, NEGATIVES = "positives", "negatives"
# Initial noise of the negatives.
NOISE = 1e-5


class NegPromptClassifier(Classifier):
    """Cosines with the positives and with the negatives."""

    method: NegPrompt
    own_score = "negprompt"
    takes_other_classes = True
    negative_features: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: NegPrompt) -> None:
        super().__init__(model, classes, method)
        self.tower = require_text(model, method.name)
        length = len(self.tower.words([method.context_init])[0])
        self.prompts = LearnedPrompts(self.tower, self.classes, length, full_stop=False)
        self.context = nn.Parameter(torch.zeros(length, self.tower.width))
        self.negative_contexts = nn.Parameter(torch.zeros(method.negatives, length, self.tower.width))
        self.register_buffer("negative_features", torch.zeros(method.negatives, len(self.classes), model.feature_dim))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """The positive starts as words; the negatives are set after it is learned."""
        shape = tuple(self.context.shape)
        self.context.data.copy_(initial_context(self.tower, shape, self.method.context_init, generator))

    def end_stage(self) -> None:
        """Start the negatives at the learned positive, each with its own noise."""
        if self.phase == POSITIVES:
            self.text_features = self.texts().detach()
            noise = torch.rand(self.negative_contexts.shape, generator=self.generator) * 2 - 1
            self.negative_contexts.data.copy_(self.context.data + NOISE * noise.to(self.context))

    def texts(self) -> torch.Tensor:
        """The positives (K, D)."""
        return self.prompts(self.context)

    def negative_texts(self) -> torch.Tensor:
        """The negatives (n, K, D) under the present contexts, with gradients."""
        return self.prompts.each(self.negative_contexts)

    def keep_texts(self) -> None:
        """Not the negatives for validation, which uses only the positives."""
        super().keep_texts()
        if not self.phase:
            self.negative_features = self.negative_texts()

    def forward(self, x: Inputs) -> Outputs:
        """Cosines with the positives, and with the negatives once those are trained or used."""
        z = x.need(Need.FEATURES)
        if self.training and self.phase == POSITIVES:
            texts = self.texts()
            return Outputs(z @ texts.T, z, texts)
        texts = self.text_features.to(z)  # already learned: they need not be run again
        negatives = self.negative_texts() if self.training else self.negative_features.to(z)
        compared = torch.einsum("nd,mkd->nmk", z, negatives)
        return Outputs(z @ texts.T, z, texts, compared, negatives)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy of the positives; later, the loss of the negatives."""
        if outputs.negative_texts is None:
            return super().losses(outputs, batch)
        assert outputs.negatives is not None
        negatives = self.model.logit_scale * outputs.negatives
        near = (outputs.negative_texts * outputs.texts).sum(dim=-1).mean()
        if self.method.as_released:
            positives = self.model.logit_scale * outputs.similarities
            logits = torch.cat([positives[:, None], negatives], dim=1).flatten(1)
            target = nn.functional.one_hot(batch.labels, len(self.classes)).to(logits).repeat(1, 1 + len(negatives[0]))
            length = outputs.negative_texts.mean(dim=0).norm(dim=-1)
            return {
                "separation": nn.functional.multilabel_soft_margin_loss(logits, target),
                "near": -self.method.near * (1 - near),
                "apart": self.method.apart * (length - 1).mean(),
            }
        apart = self.method.apart * likeness(outputs.negative_texts)
        if self.method.separation == "ce":
            logits = torch.cat([self.model.logit_scale * outputs.similarities, negatives.flatten(1)], dim=1)
            separation = nn.functional.cross_entropy(logits, batch.labels)
            return {"separation": separation, "near": self.method.near * near, "apart": apart}
        return {"separation": to_uniform(negatives.flatten(1)), "near": -self.method.near * near, "apart": apart}


def to_uniform(logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of softmax(logits) (N, J) to the uniform distribution: at least log J, reached if all are equal."""
    return (torch.logsumexp(logits, dim=1) - logits.mean(dim=1)).mean()


def likeness(negatives: torch.Tensor) -> torch.Tensor:
    """mean_k mean_{m≠m'} cos(n_km, n_km') of unit texts (n, K, D); 0 for a single negative."""
    count = len(negatives)
    if count == 1:
        return negatives.new_zeros(())
    cosines = torch.einsum("mkd,nkd->kmn", negatives, negatives)
    return (cosines.sum(dim=(1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(dim=1)).mean() / (count * (count - 1))


@register_method
@dataclass(frozen=True)
class NegPrompt(Method):
    """`near` and `apart` weigh the second and third term; stage 1 has 100 epochs, stage 2 has 10."""

    name = "negprompt"
    summary = "contexts for what each class is not, added to a learned positive context"
    formula = "CE_uniform(L·z·n) − 0.1 mean cos(n_km, t_k) + 0.05 mean cos(n_km, n_km')"
    paper = "Li et al., CVPR 2024"
    tested_with = "negprompt"
    classifier = NegPromptClassifier
    context_init: Words = "a photo of a"
    negatives: Count = 2
    near: NonNegative = 0.1
    apart: NonNegative = 0.05
    separation: Literal["uniform", "ce"] = "uniform"
    as_released: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The positive first, then the negatives; accuracy is the positive's, so it cannot choose their epoch."""
        return (
            Stage((Phase(POSITIVES, ("context",)),), {"epochs": 100}),
            Stage((Phase(NEGATIVES, ("negative_contexts",)),), {"epochs": 10}, keep_best=False),
        )
