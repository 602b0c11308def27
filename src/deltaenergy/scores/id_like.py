"""ID-like: the probability of the classes against that of learned outliers (Bai et al., CVPR 2024).

    p_in = Σ_{k≤K} p_k,   p = softmax(L·(s, s⁻));   score = log(p_in / p_out) = lse(L·s) − lse(L·s⁻)

The log-odds rank images as p_in does, but do not round to 1, where float32 would make ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.core.specs import Positive
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def id_like(similarities: torch.Tensor, negative_similarities: Any, logit_scale: Positive = 100.0) -> torch.Tensor:
    """lse(L·s) − lse(L·s⁻) for s (N, K) and s⁻ (N, J) -> (N,)."""
    negatives = as_rows(negative_similarities, "negative_similarities", len(similarities)).to(similarities)
    return torch.logsumexp(logit_scale * similarities, dim=1) - torch.logsumexp(logit_scale * negatives, dim=1)


@register_score
@dataclass(frozen=True)
class IdLikeScore(Score):
    """`id_like` as a Score of an id-like classifier."""

    name = "id-like"
    summary = "log-odds of the classes against the outliers of an id-like classifier"
    formula = "lse(L·s) − lse(L·s⁻)"
    paper = "Bai et al., CVPR 2024"
    own_to = "id-like"

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        classifier = scorer.classifier
        outputs = inputs.outputs or classifier(inputs.for_classifier)
        if outputs.negatives is None or not outputs.negatives.shape[1]:
            raise InputError(
                "Score 'id-like' needs a classifier with at least one outlier prompt: tune it with outliers=100."
            )
        return id_like.kernel(inputs.similarities, outputs.negatives, classifier.model.logit_scale)
