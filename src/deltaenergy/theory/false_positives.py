"""Theorem 2: at equal temperature and threshold λ, ΔEnergy keeps no more unknown images than MCM if s_1 ≤ τ ln 2.

    FPR(λ) = share of unknown images whose score is at least λ
    S_ΔE ≤ S_MCM for each of them, so FPR_ΔE(λ) ≤ FPR_MCM(λ) for every λ

The inequality is about one λ for both scores. FPR95 gives each score the λ at which it keeps 95% of the known images,
and a score that is smaller for unknown images may be even smaller for known images: the theorem does not cover FPR95.
Both are evaluated, at the given τ and at the smallest τ for which every unknown image meets the condition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.mcm import mcm
from deltaenergy.stats.metrics import RankedScores

RATE = 0.95


@dataclass(frozen=True)
class FalsePositives:
    """ΔEnergy with `c` resets and MCM, at one temperature.

    Attributes:
        condition: share of the unknown images with s_1 ≤ τ ln 2.
        below: share of them with S_ΔE ≤ S_MCM.
        excess: the largest FPR_ΔE(λ) − FPR_MCM(λ) over all λ; the theorem holds if it is not positive.
        fpr95, fpr95_mcm: at the thresholds that keep 95% of the known images.
    """

    tau: float
    c: int
    condition: float
    below: float
    excess: float
    fpr95: float
    fpr95_mcm: float

    def sentence(self) -> str:
        """The result as a sentence."""
        level = "holds" if self.excess <= 0 else f"fails (by up to {self.excess:.1%})"
        better = "lower" if self.fpr95 < self.fpr95_mcm else "NOT lower"
        return (
            f"At τ = {self.tau:.3g}, c = {self.c} its condition is met by {self.condition:.1%} of the unknown images; "
            f"at equal λ its inequality {level}. FPR95, which it does not cover, is {better}: {self.fpr95:.1%}, MCM's "
            f"{self.fpr95_mcm:.1%}."
        )


def false_positive_rates(known: torch.Tensor, unknown: torch.Tensor, tau: float) -> list[FalsePositives]:
    """Theorem 2 on cosines (N, K) of known and unknown images: c = 1 and 2, at `tau` and at a τ that meets its
    condition.
    """
    met = float(unknown.amax()) / math.log(2)
    found = []
    for temperature in dict.fromkeys((tau, *([met] if met > 0 else []))):
        for c in range(1, min(2, unknown.shape[1]) + 1):
            # In double precision: scores that differ in their last digits decide an inequality.
            inside, outside = (_scores(one.double(), temperature, c) for one in (known, unknown))
            top = unknown.double().amax(dim=1)
            found.append(
                FalsePositives(
                    temperature,
                    c,
                    # The image that sets the second temperature meets its condition up to rounding.
                    condition=float((top <= temperature * math.log(2) * (1 + 1e-9)).double().mean()),
                    below=float((outside[0] <= outside[1]).mean()),
                    excess=largest_excess(*outside),
                    fpr95=RankedScores(inside[0], outside[0]).fpr(RATE),
                    fpr95_mcm=RankedScores(inside[1], outside[1]).fpr(RATE),
                )
            )
    return found


def _scores(similarities: torch.Tensor, tau: float, c: int) -> tuple[np.ndarray, np.ndarray]:
    """ΔEnergy and MCM at one temperature."""
    return delta_energy(similarities, tau, c).cpu().numpy(), mcm(similarities, tau).cpu().numpy()


def largest_excess(first: np.ndarray, second: np.ndarray) -> float:
    """The largest P(first ≥ λ) − P(second ≥ λ) over all λ: it is reached at a value of `first`."""
    ordered, other = np.sort(first), np.sort(second)
    above = 1 - np.searchsorted(ordered, ordered, side="left") / len(ordered)
    above_other = 1 - np.searchsorted(other, ordered, side="left") / len(other)
    return float((above - above_other).max())
