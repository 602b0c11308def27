"""MCM: maximum concept matching, max_k softmax(s/T)_k on raw cosines with T = 1 (Ming et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.msp import MSP, msp
from deltaenergy.scores.registry import register_score


@array_function
def mcm(similarities: torch.Tensor, temperature: Positive = 1.0) -> torch.Tensor:
    """Maximum concept matching: the largest softmax probability of raw cosines."""
    return msp.kernel(similarities, temperature)


@register_score
@dataclass(frozen=True)
class MCM(MSP):
    """`mcm` as a Score."""

    name = "mcm"
    summary = "maximum concept matching: softmax of raw cosines"
    formula = "max_k softmax(s/T)_k with T = 1"
    paper = "Ming et al., NeurIPS 2022"
    temperature: Positive = 1.0
