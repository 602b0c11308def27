"""guarded-delta-energy: contrast decides, unless the best similarity itself is far too low (this project's own).

    score = z(ΔE_{τ,c}) + w · min( z(max_k s_k) + t, 0 ),   z(v) = (v − μ_v) / σ_v over ID images

ΔEnergy at τ = 0.1, c = 1 looks at how much one class stands out, whatever the level of the similarities. An image of
something else entirely can stand out too; its best similarity then lies far below those of ID images. The guard is
silent for all that come within t deviations of their mean, and counts in full beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.needs import Need
from deltaenergy.scores._standard import check_moments, moments
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.delta_energy import check_parameters, delta_energy
from deltaenergy.scores.registry import register_score
from deltaenergy.specs import check_range


@array_function
def guarded_delta_energy(
    similarities: torch.Tensor,
    means: Sequence[float],
    deviations: Sequence[float],
    tau: float = 0.1,
    c: int = 1,
    weight: float = 1.0,
    tolerance: float = 2.0,
) -> torch.Tensor:
    """The score of each row (formula above); `means` and `deviations` hold those of ΔE and of max s, in this order."""
    check_moments("guarded-delta-energy", means, deviations, 2)
    _check_guard(weight, tolerance)
    contrast = (torch.as_tensor(delta_energy(similarities, tau, c)) - means[0]) / deviations[0]
    level = (similarities.amax(dim=1) - means[1]) / deviations[1]
    return contrast + weight * (level + tolerance).clamp(max=0)


def _check_guard(weight: float, tolerance: float) -> None:
    check_range("guarded-delta-energy: weight", weight, 0)
    check_range("guarded-delta-energy: tolerance", tolerance, 0)


@register_score
@dataclass(frozen=True)
class GuardedDeltaEnergy(Score):
    """`guarded_delta_energy` as a Score that learns μ and σ from the calibration images."""

    name = "guarded-delta-energy"
    summary = "ΔEnergy, held down where the best similarity is far below that of ID images"
    formula = "z(ΔE_{τ,c}) + w · min(z(max_k s_k) + t, 0), z standardised on ID data"
    paper = "this project"
    requires = frozenset({Need.ID_DATA})
    tau: float = 0.1
    c: int = 1
    weight: float = 1.0
    tolerance: float = 2.0

    def check(self) -> None:
        """τ and c as delta-energy wants them, w ≥ 0, t ≥ 0."""
        check_parameters(self.tau, self.c)
        _check_guard(self.weight, self.tolerance)

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """Mean and deviation of both terms."""
        contrast = torch.as_tensor(delta_energy(inputs.similarities, self.tau, self.c))
        return moments([contrast, inputs.similarities.amax(dim=1)])

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        means, deviations = scorer.learned("means").tolist(), scorer.learned("deviations").tolist()
        found = guarded_delta_energy(
            inputs.similarities, means, deviations, self.tau, self.c, self.weight, self.tolerance
        )
        return torch.as_tensor(found)
