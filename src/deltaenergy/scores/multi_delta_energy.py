"""multi-delta-energy: ΔEnergies at several temperatures, each standardised on ID data (this project's own).

    score = Σ_m (ΔE_{τ_m,c_m} − μ_m) / σ_m,   μ_m and σ_m the mean and deviation of ΔE_{τ_m,c_m} over ID images

A small τ separates near unknowns, a large one far unknowns (`docs/scores.md`); the sum needs no choice between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.errors import InputError
from deltaenergy.needs import Need
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.scores.delta_energy import check_parameters, delta_energy
from deltaenergy.scores.registry import register_score

TAUS = (0.01, 0.1, 1.0)
CS = (2, 1, 1)


@array_function
def multi_delta_energy(
    similarities: torch.Tensor,
    means: Sequence[float],
    deviations: Sequence[float],
    taus: Sequence[float] = TAUS,
    cs: Sequence[int] = CS,
) -> torch.Tensor:
    """The standardised sum of each row (formula above); `means` and `deviations` hold μ_m and σ_m."""
    if not len(means) == len(deviations) == len(taus) == len(cs):
        raise InputError("multi-delta-energy: means, deviations, taus and cs must be of one length.")
    terms = [
        (torch.as_tensor(delta_energy(similarities, tau, c)) - mean) / deviation
        for tau, c, mean, deviation in zip(taus, cs, means, deviations)
    ]
    return torch.stack(terms).sum(dim=0)


@register_score
@dataclass(frozen=True)
class MultiDeltaEnergy(Score):
    """`multi_delta_energy` as a Score that learns μ and σ from the calibration images."""

    name = "multi-delta-energy"
    summary = "ΔEnergies at several temperatures, standardised on ID data and added"
    formula = "Σ_m (ΔE_{τ_m,c_m} − μ_m) / σ_m"
    paper = "this project"
    needs = frozenset({Need.ID_DATA})
    taus: tuple[float, ...] = TAUS
    cs: tuple[int, ...] = CS

    def check(self) -> None:
        """As many τ as c, at least one; each pair as delta-energy wants it."""
        for field in ("taus", "cs"):
            object.__setattr__(self, field, _as_tuple(field, getattr(self, field)))
        if len(self.taus) != len(self.cs):
            raise InputError(
                f"multi-delta-energy: taus and cs must be of one length, got {len(self.taus)} and {len(self.cs)}."
            )
        for tau, c in zip(self.taus, self.cs):
            check_parameters(tau, c)

    def fit(self, inputs: ScoreInputs) -> None:
        """Mean and deviation of each term; a term that is the same for all ID images is only centred."""
        terms = [delta_energy(inputs.similarities, tau, c).double() for tau, c in zip(self.taus, self.cs)]
        deviations = torch.stack([term.std(correction=0) for term in terms])
        self.state["means"] = torch.stack([term.mean() for term in terms])
        self.state["deviations"] = torch.where(deviations > 0, deviations, 1.0)

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        means, deviations = self.learned("means").tolist(), self.learned("deviations").tolist()
        return torch.as_tensor(multi_delta_energy(inputs.similarities, means, deviations, self.taus, self.cs))


def _as_tuple(field: str, values: Any) -> tuple[Any, ...]:
    """Lists (as JSON and the command line give them) and single numbers become tuples."""
    if isinstance(values, (int, float)):
        return (values,)
    if not isinstance(values, (tuple, list)) or not values:
        raise InputError(f"multi-delta-energy: {field} must be a list of numbers such as [0.01,1], got {values!r}.")
    return tuple(values)
