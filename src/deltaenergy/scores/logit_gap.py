"""LogitGap: how far the closest class is ahead of the next classes (Liang et al., NeurIPS 2025).

    score = s_(1) − mean(s_(2) … s_(N+1)),   s_(1) ≥ s_(2) ≥ … the sorted cosines

N = 88 is the released number for ImageNet's 1,000 classes; with fewer classes it is all others, K − 1. `share` gives N
as a share of K instead. With one class, the score is its cosine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.specs import Count, Share
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def logit_gap(similarities: torch.Tensor, others: Count = 88, share: Share = 0.0) -> torch.Tensor:
    """The largest cosine minus the mean of the N next (formula above); a `share` of K overrides `others`."""
    classes = similarities.shape[1]
    if classes == 1:
        return similarities[:, 0].clone()
    behind = min(max(1, round(share * classes)) if share else others, classes - 1)
    top = similarities.topk(behind + 1, dim=1).values
    return top[:, 0] - top[:, 1:].mean(dim=1)


@register_score
@dataclass(frozen=True)
class LogitGap(Score):
    """`logit_gap` as a Score. `others` is N; a `share` of the classes, if not 0, replaces it."""

    name = "logit-gap"
    summary = "how far the closest class is ahead of the next ones"
    formula = "s_(1) − mean(s_(2) … s_(N+1)) with N = 88"
    paper = "Liang et al., NeurIPS 2025"
    others: Count = 88
    share: Share = 0.0

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return logit_gap.kernel(inputs.similarities, self.others, self.share)
