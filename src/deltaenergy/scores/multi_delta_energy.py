"""multi-delta-energy: ΔEnergies at several temperatures, each standardised on ID data (this project's own).

    score = Σ_m (ΔE_{τ_m,c_m} − μ_m) / σ_m,   μ_m and σ_m the mean and deviation of ΔE_{τ_m,c_m} over ID images

A small τ separates near unknowns, a large τ far unknowns; the sum needs no choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Positive
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.registry import register_score

TAUS = (0.01, 0.1, 1.0)
CS = (2, 1, 1)
# A few units in the last place of single precision, relative to the largest value.
ROUNDING = 16 * torch.finfo(torch.float32).eps


@array_function
def multi_delta_energy(
    similarities: torch.Tensor,
    means: Sequence[float],
    deviations: Sequence[Positive],
    taus: Sequence[Positive] = TAUS,
    cs: Sequence[Count] = CS,
) -> torch.Tensor:
    """The standardised sum of each row (formula above); `means` and `deviations` are μ_m and σ_m."""
    _check_lengths(taus=taus, cs=cs, means=means, deviations=deviations)
    terms = [
        (delta_energy.kernel(similarities, tau, c) - mean) / deviation
        for tau, c, mean, deviation in zip(taus, cs, means, deviations)
    ]
    return torch.stack(terms).sum(dim=0)


def moments(terms: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Mean and deviation of each term over ID images; a constant term is only centred."""
    values = [term.double() for term in terms]
    deviations = torch.stack([term.std(correction=0) for term in values])
    # Differences by rounding are not a deviation: similarities are computed in single precision.
    least = torch.stack([ROUNDING * term.abs().max() for term in values])
    means = torch.stack([term.mean() for term in values])
    return {"means": means, "deviations": torch.where(deviations > least, deviations, 1.0)}


def _check_lengths(**lists: Sequence[float]) -> None:
    if len(set(map(len, lists.values()))) != 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in lists.items())
        raise InputError(f"multi-delta-energy: these lists must be of one length, got {lengths}.")


@register_score
@dataclass(frozen=True)
class MultiDeltaEnergy(Score):
    """`multi_delta_energy` as a Score that learns μ and σ from the calibration images."""

    name = "multi-delta-energy"
    summary = "ΔEnergies at several temperatures, standardised on ID data and added"
    formula = "Σ_m (ΔE_{τ_m,c_m} − μ_m) / σ_m"
    paper = "this project"
    needs = frozenset({Need.ID_DATA})
    taus: tuple[Positive, ...] = TAUS
    cs: tuple[Count, ...] = CS

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_lengths(taus=self.taus, cs=self.cs)

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        return moments([delta_energy.kernel(inputs.similarities, tau, c) for tau, c in zip(self.taus, self.cs)])

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        means, deviations = scorer.learned("means").tolist(), scorer.learned("deviations").tolist()
        return multi_delta_energy.kernel(inputs.similarities, means, deviations, self.taus, self.cs)
