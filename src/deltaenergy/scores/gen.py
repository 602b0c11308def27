"""GEN: generalised entropy of the most likely classes (Liu et al., CVPR 2023).

    score = −Σ_{k among the M largest} p_k^γ (1 − p_k)^γ,   p = softmax(s/T)

A small γ weighs small probabilities almost as much as large ones, so low-ranked classes also count. γ = 0.1 and M = 100
are the published values for ImageNet; with fewer than M classes all of them count. 1 − p_1 is the sum of the other
probabilities, never a difference: near 1 a difference has no digits left, which the power 0.1 would amplify.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Count, Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def gen(
    similarities: torch.Tensor, gamma: Positive = 0.1, top_m: Count = 100, temperature: Positive = 0.01
) -> torch.Tensor:
    """Generalised entropy of the `top_m` largest probabilities, negated (formula above)."""
    logits = similarities / temperature
    top = logits.topk(min(top_m, logits.shape[1]), dim=1)
    rest = torch.logsumexp(logits.scatter(1, top.indices[:, :1], -torch.inf), dim=1, keepdim=True)
    total = torch.logaddexp(top.values[:, :1], rest)
    log_p = top.values - total
    # All but the first are at most ½, so 1 − p keeps its digits.
    log_not_p = torch.cat([rest - total, torch.log1p(-log_p[:, 1:].exp())], dim=1)
    return -(gamma * (log_p + log_not_p)).exp().sum(dim=1)


@register_score
@dataclass(frozen=True)
class Gen(Score):
    """`gen` as a Score. γ is `gamma`, M is `top_m`."""

    name = "gen"
    summary = "generalised entropy of the most likely classes"
    formula = "−Σ p_k^γ (1 − p_k)^γ over the M largest p = softmax(s/T), γ = 0.1, M = 100"
    paper = "Liu et al., CVPR 2023"
    temperature: Positive = 0.01
    gamma: Positive = 0.1
    top_m: Count = 100

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return gen.kernel(inputs.similarities, self.gamma, self.top_m, self.temperature)
