"""Mahalanobis: minus the squared distance to the nearest class mean, in units of the spread (Lee et al., NeurIPS 2018).

    score = −min_k (z − μ_k)ᵀ Σ⁻¹ (z − μ_k),   z unit image features, Σ one covariance for all classes

μ_k and Σ come from the calibration images. These need no labels: an image belongs to the class that the classifier
gives it. A class with fewer than `MIN_OF_CLASS` images has no separate mean; its images share the mean of all. Σ is
shrunk towards a multiple of the identity by the share of Ledoit and Wolf (2004), since a few hundred images in 512
dimensions leave it singular otherwise.

Fitted on few images, those images are nearer to what was learned than new images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.core.arrays import round_to_block
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.neglabel import BLOCK_ENTRIES, in_blocks
from deltaenergy.scores.registry import register_score

# A mean of fewer images describes them rather than their class.
MIN_OF_CLASS = 10
# The smallest variance, as a share of a unit feature's: equal images have none at all.
LEAST_VARIANCE = 1e-6


@array_function
def mahalanobis(features: torch.Tensor, means: Any, root: Any) -> torch.Tensor:
    """The score (formula above) of features (N, D) from means (K, D) and a `root` (D, D) with root · rootᵀ = Σ⁻¹."""
    centres, matrix = (as_rows(value, name).to(features) for value, name in ((means, "means"), (root, "root")))
    size = features.shape[1]
    if not len(centres) or centres.shape[1] != size or matrix.shape != (size, size):
        raise InputError(
            f"means must be (…, {size}) and root ({size}, {size}), got {tuple(centres.shape)} and "
            f"{tuple(matrix.shape)}."
        )
    places = centres @ matrix

    def score(rows: slice) -> torch.Tensor:
        here = features[rows] @ matrix
        # The product finds the nearest mean, the difference measures it without cancellation.
        nearest = (2 * here @ places.T - places.square().sum(dim=1)).argmax(dim=1)
        return -(here - places[nearest]).square().sum(dim=1)

    return in_blocks(score, len(features), round_to_block(BLOCK_ENTRIES // max(len(centres), size)))


def shrunk_covariance(residuals: torch.Tensor) -> torch.Tensor:
    """The covariance (D, D) of centred rows (N, D), shrunk as by Ledoit and Wolf (2004): (1 − a) S + a (tr S / D) I.

    a = min(1, b / d): b estimates the error of S, d its distance from the multiple of the identity.
    """
    count, size = residuals.shape
    covariance = residuals.T @ residuals / count
    level = covariance.trace() / size
    spread = covariance.square().sum()
    distance = spread - size * level**2
    error = (residuals.square().sum(dim=1).square().mean() - spread) / count
    share = float((error / distance).clamp(0, 1)) if distance > 0 else 1.0
    identity = torch.eye(size, dtype=residuals.dtype, device=residuals.device)
    return (1 - share) * covariance + (share * level).clamp(min=LEAST_VARIANCE / size) * identity


@register_score
@dataclass(frozen=True)
class Mahalanobis(Score):
    """`mahalanobis` as a Score that learns means and covariance from the calibration images."""

    name = "mahalanobis"
    summary = "nearness to the mean of a class, in units of the spread of ID images"
    formula = "−min_k (z − μ_k)ᵀ Σ⁻¹ (z − μ_k), μ and Σ of ID images, Σ shrunk"
    paper = "Lee et al., NeurIPS 2018"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """The means of classes with enough images, one for all others, and the root of Σ⁻¹."""
        features = inputs.features.double()
        predicted = inputs.similarities.argmax(dim=1)
        counts = predicted.bincount(minlength=inputs.similarities.shape[1])
        own = torch.nonzero(counts >= MIN_OF_CLASS)[:, 0]
        # The row of each class's mean; the mean of all images comes last.
        places = torch.full_like(counts, len(own))
        places[own] = torch.arange(len(own), device=own.device)
        mean_of = places[predicted]
        means = torch.stack([*(features[mean_of == k].mean(dim=0) for k in range(len(own))), features.mean(dim=0)])
        covariance = shrunk_covariance(features - means[mean_of])
        root = torch.linalg.cholesky(torch.linalg.inv(covariance))
        used = len(own) + int((mean_of == len(own)).any())
        return {"means": means[:used].float(), "root": root.float().contiguous()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return mahalanobis.kernel(inputs.features, scorer.learned("means"), scorer.learned("root"))
