"""LoCoOp: CoOp that unlearns the background (Miyai et al., NeurIPS 2023).

    L = CE − λ · mean_{(i,p) ∈ J} H( softmax(L · u_ip · t) )

J holds the patches whose top-K classes lack the image's label: they show something else, and their class
distribution is pushed towards uniform. Meant to be scored with gl-mcm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.classifiers.prompt import PromptClassifier, PromptMethod
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import CountOrZero, NonNegative
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model

PAPER_TOP_K = 200


class LoCoOpClassifier(PromptClassifier):
    """A context trained with the entropy of background patches."""

    method: LoCoOp

    def __init__(self, model: Model, classes: Sequence[str], method: LoCoOp) -> None:
        super().__init__(model, classes, method)
        self.ranks = method.top_k or min(PAPER_TOP_K, max(1, len(self.classes) // 2))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """The context; K must leave room for patches that do not show the label."""
        super().initialise(data, generator)
        if self.ranks >= len(self.classes):
            raise InputError(
                f"locoop: with top_k={self.ranks} and {len(self.classes)} classes every patch would show its label. "
                f"Use top_k below {len(self.classes)}."
            )

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Cross-entropy, and the negative entropy of irrelevant patches."""
        logits = self.model.logit_scale * batch.need(Need.PATCHES) @ outputs.texts.T
        entropy = irrelevant_entropy(logits, batch.labels, self.ranks)
        return {**super().losses(outputs, batch), "−λH": -self.method.weight * entropy}


@register_method
@dataclass(frozen=True)
class LoCoOp(PromptMethod):
    """λ is `weight`. `top_k` 0 means the paper's 200, or half of the classes if that is smaller."""

    name = "locoop"
    summary = "coop that pushes background patches away from all classes"
    formula = "CE − λ·mean H(softmax(L·u_p·t)) over patches whose top-K classes lack the label"
    paper = "Miyai et al., NeurIPS 2023"
    tested_with = "gl-mcm"
    classifier = LoCoOpClassifier
    needs_to_train = frozenset({Need.FEATURES, Need.PATCHES})
    weight: NonNegative = 0.25
    top_k: CountOrZero = 0

    def grid_for(self, classes: int) -> Mapping[str, Sequence[Any]]:
        """λ, and K around a quarter and half of the classes (100 and 200 of the paper's 1,000, at most)."""
        top_k = sorted({max(1, min(PAPER_TOP_K // 2, classes // 4)), max(1, min(PAPER_TOP_K, classes // 2))})
        return {"weight": (0.1, 0.25, 0.5), "top_k": top_k}


def irrelevant_entropy(logits: torch.Tensor, labels: torch.Tensor, top_k: int) -> torch.Tensor:
    """Mean entropy of the patches (B, P, K) whose `top_k` classes lack the label; 0 if there are none."""
    top = logits.detach().topk(top_k, dim=-1).indices
    irrelevant = (top != labels[:, None, None]).all(dim=-1)
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return (entropy * irrelevant).sum() / irrelevant.sum().clamp(min=1)
