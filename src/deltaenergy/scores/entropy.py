"""Entropy: negative entropy of the class probabilities, Σ_k p_k log p_k with p = softmax(s/T)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def entropy(similarities: torch.Tensor, temperature: Positive = 0.01) -> torch.Tensor:
    """Negative entropy of the class probabilities, Σ_k p_k log p_k."""
    log_p = torch.log_softmax(similarities / temperature, dim=1)
    return (log_p.exp() * log_p).sum(dim=1)


@register_score
@dataclass(frozen=True)
class Entropy(Score):
    """`entropy` as a Score."""

    name = "entropy"
    summary = "negative entropy of the class probabilities"
    formula = "−H(softmax(s/T))"
    paper = "Hendrycks & Gimpel, ICLR 2017 (as a baseline since)"
    temperature: Positive = 0.01

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return entropy.kernel(inputs.similarities, self.temperature)
