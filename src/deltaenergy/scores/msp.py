"""MSP: the largest class probability, max_k softmax(s/T)_k (Hendrycks & Gimpel, ICLR 2017).

s are similarities (N, K); T = 0.01 is CLIP's own temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def msp(similarities: torch.Tensor, temperature: Positive = 0.01) -> torch.Tensor:
    """Maximum softmax probability, max_k softmax(s/T)_k = 1 / Σ_k exp((s_k − max s)/T)."""
    top = similarities.amax(dim=1, keepdim=True)
    return 1 / (similarities - top).div_(temperature).exp_().sum(dim=1)


@register_score
@dataclass(frozen=True)
class MSP(Score):
    """`msp` as a Score."""

    name = "msp"
    summary = "maximum softmax probability"
    formula = "max_k softmax(s/T)_k"
    paper = "Hendrycks & Gimpel, ICLR 2017"
    temperature: Positive = 0.01

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return msp.kernel(inputs.similarities, self.temperature)
