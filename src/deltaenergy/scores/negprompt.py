"""NegPrompt: the most likely class among the classes and what each of them is not (Li et al., CVPR 2024).

    score = exp( max_k s_k − lse over the K(1 + n) cosines s, s⁻ ),   T = 1

that is mcm's largest probability with the negatives in the denominator. With `local`, max over patches and classes of
the same for each patch is added; the paper that compares with it ("GL") does not define that; this is our reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_tensor, check_finite
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score


@array_function
def negprompt(similarities: torch.Tensor, negative_similarities: Any) -> torch.Tensor:
    """exp(max_k s_k − lse(s, s⁻)) for s (N, K) and s⁻ (N, …) -> (N,)."""
    negatives = as_tensor(negative_similarities, "negative_similarities").to(similarities)
    if negatives.ndim < 2 or len(negatives) != len(similarities):
        raise InputError(
            f"negative_similarities must be an array with one row per image ({len(similarities)}), "
            f"got shape {tuple(negatives.shape)}."
        )
    every = torch.cat([similarities, negatives.flatten(1)], dim=1)
    check_finite(every.sum(), negatives.flatten(1), "negative_similarities")
    return torch.exp(similarities.amax(dim=1) - torch.logsumexp(every, dim=1))


@register_score
@dataclass(frozen=True)
class NegPromptScore(Score):
    """`negprompt` as a Score of a negprompt classifier."""

    name = "negprompt"
    summary = "mcm with the negatives of a negprompt classifier in the denominator"
    formula = "exp(max_k s_k − lse over K(1+n) cosines)"
    paper = "Li et al., CVPR 2024"
    own_to = "negprompt"
    local: bool = False

    @property
    def needs(self) -> frozenset[Need]:
        """Also patches, with `local`."""
        return frozenset({Need.PATCHES}) if self.local else frozenset()

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        classifier = scorer.classifier
        outputs = inputs.outputs or classifier(inputs.for_classifier)
        overall = negprompt.kernel(inputs.similarities, outputs.negatives)
        if not self.local:
            return overall
        texts = classifier.negative_features.flatten(0, 1)  # type: ignore[operator]
        best = [
            negprompt(classifier.patch_similarities(image), image @ texts.T.to(image)).max()
            for image in inputs.need(Need.PATCHES)
        ]
        return overall + (torch.stack(best).to(overall) if best else overall)
