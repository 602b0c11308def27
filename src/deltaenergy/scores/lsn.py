"""LSN: how near an image is to a class, and how far from what another class is not (Nie et al., ICLR 2024).

    score = max_k softmax(s)_k + mean_m max_k softmax((1 − z·n_m)/5)_k

s are the cosines with the classes' texts and z·n_m those with the m-th negative of each class, which an lsn classifier
has learned; no other classifier has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_tensor, check_finite
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.msp import msp
from deltaenergy.scores.registry import register_score

# The temperature of the distances.
SOFTNESS = 5.0


@array_function
def lsn(similarities: torch.Tensor, negative_similarities: Any) -> torch.Tensor:
    """max_k softmax(s)_k + mean_m max_k softmax((1 − s⁻_m)/5)_k for s (N, K) and s⁻ (N, M, K) -> (N,)."""
    negatives = as_tensor(negative_similarities, "negative_similarities").to(similarities)
    rows, classes = similarities.shape
    if negatives.ndim != 3 or negatives.shape[::2] != (rows, classes) or negatives.shape[1] == 0:
        raise InputError(
            f"negative_similarities must be an (images, negatives, classes) array, here ({rows}, …, {classes}), "
            f"got shape {tuple(negatives.shape)}."
        )
    check_finite(negatives.sum(), negatives, "negative_similarities")
    far = msp.kernel(-negatives.flatten(0, 1), SOFTNESS).view(negatives.shape[:2]).mean(dim=1)
    return msp.kernel(similarities, 1.0) + far


@register_score
@dataclass(frozen=True)
class LsnScore(Score):
    """`lsn` as a Score of an lsn classifier."""

    name = "lsn"
    summary = "nearness to a class and distance from its negatives, for lsn classifiers"
    formula = "max_k softmax(s)_k + mean_m max_k softmax((1 − z·n_m)/5)_k"
    paper = "Nie et al., ICLR 2024"
    own_to = "lsn"

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        outputs = inputs.outputs or scorer.classifier(inputs.for_classifier)
        return lsn.kernel(inputs.similarities, outputs.negatives)
