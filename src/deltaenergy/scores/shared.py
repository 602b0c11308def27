"""Shared by several scores: the largest probability and its temperature, and standardisation over ID images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.base import Score

# A few units in the last place of single precision, relative to the largest value.
ROUNDING = 16 * torch.finfo(torch.float32).eps


def largest_probability(similarities: torch.Tensor, temperature: float) -> torch.Tensor:
    """max_k softmax(s/T)_k = 1 / Σ_k exp((s_k − max s)/T)."""
    top = similarities.amax(dim=1, keepdim=True)
    return 1 / (similarities - top).div_(temperature).exp_().sum(dim=1)


@dataclass(frozen=True)
class Tempered(Score):
    """A score with one hyper-parameter: the temperature."""

    temperature: Positive = 0.01


def moments(terms: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Mean and deviation of each term over ID images; a constant term is only centred."""
    values = [term.double() for term in terms]
    deviations = torch.stack([term.std(correction=0) for term in values])
    # Differences by rounding are not a deviation: similarities are computed in single precision.
    least = torch.stack([ROUNDING * term.abs().max() for term in values])
    means = torch.stack([term.mean() for term in values])
    return {"means": means, "deviations": torch.where(deviations > least, deviations, 1.0)}
