"""Standard units: how many deviations of the ID images a value lies above their mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Some units in the last place of single precision, relative to the largest value.
ROUNDING = 16 * torch.finfo(torch.float32).eps


def moments(terms: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Mean and deviation of each term over ID images; one that is the same for all of them is only centred."""
    values = [term.double() for term in terms]
    deviations = torch.stack([term.std(correction=0) for term in values])
    # What rounding alone made of equal values is no deviation: similarities are computed in single precision.
    least = torch.stack([ROUNDING * term.abs().max() for term in values])
    means = torch.stack([term.mean() for term in values])
    return {"means": means, "deviations": torch.where(deviations > least, deviations, 1.0)}
