"""GalLoP: mcm with the global prompts, and on the best patch with the local prompts (Lafon et al., ECCV 2024).

score = max_k softmax(mean_m g)_k + max_{p,k} softmax_k(mean_m l_p)_k,   T = 1, no top-k

g are the cosines of the image with the global prompts and l_p those of patch p with the local prompts of a gallop
classifier. Means are over its prompts: mean_m g = z · (mean of unit texts), a vector shorter than 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.core.needs import Need
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.gl_mcm import local_mcm
from deltaenergy.scores.mcm import mcm
from deltaenergy.scores.registry import register_score


@register_score
@dataclass(frozen=True)
class GallopScore(Score):
    """As a Score of a gallop classifier."""

    name = "gallop"
    summary = "mcm with the global prompts of a gallop classifier and, on the best patch, its local prompts"
    formula = "max_k softmax(mean_m g)_k + max_{p,k} softmax_k(mean_m l_p)_k"
    paper = "Lafon et al., ECCV 2024"
    own_to = "gallop"
    needs = frozenset({Need.PATCHES})

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        classifier = scorer.classifier
        texts = classifier.global_features.mean(dim=0).to(inputs.features)  # type: ignore[operator]
        overall = mcm.kernel(inputs.features @ texts.T, 1.0)
        local = local_mcm(inputs.need(Need.PATCHES), classifier.patch_similarities, len(classifier.classes))
        return overall + local.to(overall)
