"""GL-MCM: maximum concept matching on the whole image and on its best patch (Miyai et al., IJCV 2025).

    score = max_k softmax(s/T)_k + λ · max_{p,k} softmax_k(u_p·t_k / T),   u_p the unit features of the patches

so an image also counts as known if a class is only a part of it. The authors' ImageNet script has λ = 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.specs import NonNegative, Positive, bounded
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import check_finite
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.mcm import mcm
from deltaenergy.scores.registry import register_score

# Similarities of one block of patches (float32) stay within 4 MB: read back from cache, not from memory.
BLOCK_ENTRIES = 1_048_576


@bounded
def local_mcm(
    patches: torch.Tensor,
    similarities_of: Callable[[torch.Tensor], torch.Tensor],
    classes: int,
    temperature: Positive = 1.0,
) -> torch.Tensor:
    """max_{p,k} softmax_k(s_pk / T) for patch features (N, P, D) -> (N,), with s = `similarities_of` some patches.

    Reduced block by block: the N × P × K similarities are never stored together.
    """
    if patches.ndim != 3 or not patches.shape[1]:
        raise InputError(f"patches must be an (images, patches, dimensions) tensor, got {tuple(patches.shape)}.")
    check_finite(patches.sum(), patches, "patches")
    flat = patches.flatten(0, 1)
    best = [mcm(similarities_of(block), temperature) for block in torch.split(flat, max(1, BLOCK_ENTRIES // classes))]
    return torch.cat(best).view(patches.shape[:2]).amax(dim=1)


@register_score
@dataclass(frozen=True)
class GlMcm(Score):
    """`mcm` + λ · `local_mcm` as a Score."""

    name = "gl-mcm"
    summary = "mcm on the whole image and on its best patch"
    formula = "max_k softmax(s/T)_k + λ · max_{p,k} softmax_k(u_p·t_k/T)"
    paper = "Miyai et al., IJCV 2025"
    needs = frozenset({Need.PATCHES})
    temperature: Positive = 1.0
    weight: NonNegative = 1.0

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        classifier, patches = scorer.classifier, inputs.need(Need.PATCHES)
        overall = mcm.kernel(inputs.similarities, self.temperature)
        local = local_mcm(patches, classifier.patch_similarities, len(classifier.classes), self.temperature)
        return overall + self.weight * local.to(overall)
