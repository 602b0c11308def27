"""Energy: negative free energy of the similarities, T · log Σ_k exp(s_k/T) (Liu et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def energy(similarities: torch.Tensor, temperature: Positive = 0.01) -> torch.Tensor:
    """Negative free energy, T · log Σ_k exp(s_k/T)."""
    return temperature * torch.logsumexp(similarities / temperature, dim=1)


@register_score
@dataclass(frozen=True)
class Energy(Score):
    """`energy` as a Score."""

    name = "energy"
    summary = "negative free energy of the similarities"
    formula = "T · lse(s/T)"
    paper = "Liu et al., NeurIPS 2020"
    temperature: Positive = 0.01

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return energy.kernel(inputs.similarities, self.temperature)
