"""Max-logit: the largest similarity, max_k s_k (Hendrycks et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def max_logit(similarities: torch.Tensor) -> torch.Tensor:
    """The largest similarity, max_k s_k."""
    return similarities.amax(dim=1)


@register_score
@dataclass(frozen=True)
class MaxLogit(Score):
    """`max_logit` as a Score."""

    name = "max-logit"
    summary = "the largest similarity"
    formula = "max_k s_k"
    paper = "Hendrycks et al., ICML 2022"

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return max_logit.kernel(inputs.similarities)
