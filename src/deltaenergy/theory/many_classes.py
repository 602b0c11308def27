"""The appendix's argument for many classes: b = Σ_{k≠1} e^{s_k/τ} outgrows e^{s_1/τ}, and both scores can be expanded.

    ΔE ≈ (e^a − 1)/b − (e^a − 1)²/2b²,   MCM ≈ e^a/b − e^{2a}/b²,   a = s_1/τ
    d_ΔE − d_MCM ≈ (e^{2a} − e^{2a'})/2b² + (e^a − e^{a'})/b² > 0

for a known image and an unknown one with s_1 > s_1' and equal b. Whether b ≫ e^a is a matter of τ as much as of K: at
τ = 0.01 one class may hold almost all of the sum however many there are. Counted on random subsets of the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deltaenergy.theory.separation import PAIRS, quantities

# b ≫ e^a counts as met from here on.
MUCH = 10.0


@dataclass(frozen=True)
class ManyClasses:
    """K of the classes, at one temperature.

    Attributes:
        ratio: median of b / e^a.
        assumption: share of the images with b of at least ten times e^a.
        error, error_mcm: median relative errors of the two expansions.
        wider: share of the pairs with s_1 > s_1' whose gap is wider than MCM's; `pairs` are so many.
    """

    tau: float
    classes: int
    ratio: float
    assumption: float
    error: float
    error_mcm: float
    wider: float
    pairs: int


def many_classes_at(
    known: torch.Tensor, unknown: torch.Tensor | None, tau: float, rng: np.random.Generator
) -> list[ManyClasses]:
    """The argument for 2, 4, 8, … and all classes of cosines (N, K), with pairs as in Theorem 1."""
    if known.shape[1] < 2:
        return []
    order = torch.from_numpy(rng.permutation(known.shape[1])).to(known.device)
    sizes = [2**i for i in range(1, known.shape[1].bit_length()) if 2**i < known.shape[1]]
    return [_with(known, unknown, tau, order[:size], rng) for size in (*sizes, known.shape[1])]


def _with(
    known: torch.Tensor, unknown: torch.Tensor | None, tau: float, columns: torch.Tensor, rng: np.random.Generator
) -> ManyClasses:
    first = quantities(known[:, columns], tau)
    second = first if unknown is None else quantities(unknown[:, columns], tau)
    log_ratio = first.log_rest - first.top / tau
    # (e^a − 1)/b and e^a/b, in a form that does not overflow.
    small, share = -np.expm1(-first.top / tau) * np.exp(-log_ratio), np.exp(-log_ratio)
    with np.errstate(over="ignore"):
        expanded, expanded_mcm = small - small**2 / 2, share - share**2
        errors = [np.abs(guess / truth - 1) for guess, truth in ((expanded, first.delta), (expanded_mcm, first.mcm))]
    i, j = rng.integers(len(first.top), size=PAIRS), rng.integers(len(second.top), size=PAIRS)
    above = first.top[i] > second.top[j]
    i, j = i[above], j[above]
    wider = first.delta[i] - second.delta[j] > first.mcm[i] - second.mcm[j]
    return ManyClasses(
        tau,
        len(columns),
        ratio=float(np.exp(min(np.median(log_ratio), 700))),
        assumption=float((log_ratio >= np.log(MUCH)).mean()),
        error=float(np.median(errors[0])),
        error_mcm=float(np.median(errors[1])),
        wider=float(wider.mean()) if len(wider) else 0.0,
        pairs=len(wider),
    )
