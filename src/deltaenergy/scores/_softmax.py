"""What the scores of class probabilities share: the largest probability, and the temperature as a setting."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.base import Score


def largest_probability(similarities: torch.Tensor, temperature: float) -> torch.Tensor:
    """max_k softmax(s/T)_k = 1 / Σ_k exp((s_k − max s)/T)."""
    top = similarities.amax(dim=1, keepdim=True)
    return 1 / (similarities - top).div_(temperature).exp_().sum(dim=1)


@dataclass(frozen=True)
class Tempered(Score):
    """A score with one hyper-parameter: the temperature."""

    temperature: Positive = 0.01
