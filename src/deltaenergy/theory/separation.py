"""Theorem 1: ΔEnergy keeps the order of the largest similarity, and spreads it more than MCM does; c = 1.

For two images with s_1(x) > s_1(x'), and b = Σ_{k≠1} e^{s_k/τ} equal for both (the theorem's assumption):

    1)  ΔE(x) > ΔE(x')        2)  ΔE(x) − ΔE(x') > MCM(x) − MCM(x')

by the gradient identities ∂ΔE/∂s_1 = MCM/τ and ∂MCM/∂s_1 = MCM (1 − MCM)/τ. On real images b differs, often by
orders of magnitude at τ = 0.01; how much, and how often the properties hold, is counted over pairs.

The appendix's argument for many classes: b = Σ_{k≠1} e^{s_k/τ} outgrows e^{s_1/τ}, and both scores can be expanded.

    ΔE ≈ (e^a − 1)/b − (e^a − 1)²/2b²,   MCM ≈ e^a/b − e^{2a}/b²,   a = s_1/τ
    d_ΔE − d_MCM ≈ (e^{2a} − e^{2a'})/2b² + (e^a − e^{a'})/b² > 0

for a known image and an unknown one with s_1 > s_1' and equal b. Whether b ≫ e^a is a matter of τ as much as of K: at τ
= 0.01 one class may have almost all of the sum however many there are. Counted on random subsets of the classes.

Theorem 2: at equal temperature and threshold λ, ΔEnergy keeps no more unknown images than MCM if s_1 ≤ τ ln 2.

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
import numpy.typing as npt
import torch

from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.mcm import mcm
from deltaenergy.stats.metrics import RankedScores

PAIRS = 100_000
# The assumption counts as met if b differs by at most 10%.
SIMILAR = float(np.log(1.1))
# b ≫ e^a counts as met from here on.
MUCH = 10.0


@dataclass(frozen=True)
class PairCheck:
    """Pairs (x, x') with s_1(x) > s_1(x').

    Attributes:
        pairs: number of pairs.
        assumption: share of pairs whose b differs by at most 10%.
        order, spread: shares of all pairs with property 1 and property 2.
        order_if, spread_if: the same among the pairs that meet the assumption (None if there are none).
        log_gap: median |log b − log b'|.
    """

    pairs: int
    assumption: float
    order: float
    spread: float
    order_if: float | None
    spread_if: float | None
    log_gap: float


def check_pairs(
    similarities: torch.Tensor, others: torch.Tensor | None, tau: float, rng: np.random.Generator
) -> PairCheck:
    """Theorem 1 on pairs of an image of `similarities` with one of `others` (or of the same set if None)."""
    first = quantities(similarities, tau)
    second = first if others is None else quantities(others, tau)
    i = rng.integers(len(first.top), size=PAIRS)
    j = rng.integers(len(second.top), size=PAIRS)
    above = first.top[i] > second.top[j]
    i, j = i[above], j[above]
    if not len(i):
        return PairCheck(0, 0.0, 0.0, 0.0, None, None, 0.0)
    gap = np.abs(first.log_rest[i] - second.log_rest[j])
    similar = gap <= SIMILAR
    difference = first.delta[i] - second.delta[j]
    order = difference > 0
    spread = difference > first.mcm[i] - second.mcm[j]
    return PairCheck(
        pairs=len(i),
        assumption=float(similar.mean()),
        order=float(order.mean()),
        spread=float(spread.mean()),
        order_if=float(order[similar].mean()) if similar.any() else None,
        spread_if=float(spread[similar].mean()) if similar.any() else None,
        log_gap=float(np.median(gap)),
    )


@dataclass(frozen=True)
class Quantities:
    """Of each image: s_1, log b, ΔEnergy with c = 1, and MCM."""

    top: npt.NDArray[np.float64]
    log_rest: npt.NDArray[np.float64]
    delta: npt.NDArray[np.float64]
    mcm: npt.NDArray[np.float64]


def quantities(similarities: torch.Tensor, tau: float) -> Quantities:
    """The quantities of the theorem, from cosines (N, K), in float64."""
    s = similarities.double()
    delta, mcm = _scores(s, tau)
    rest = (s / tau).scatter(1, s.argmax(dim=1, keepdim=True), -torch.inf)
    return Quantities(
        s.amax(dim=1).cpu().numpy(),
        torch.logsumexp(rest, dim=1).cpu().numpy(),
        delta.cpu().numpy(),
        mcm.cpu().numpy(),
    )


def _scores(similarities: torch.Tensor, tau: float) -> tuple[torch.Tensor, torch.Tensor]:
    """ΔEnergy with c = 1 and s̃ = 0, and MCM at the same τ, by their definitions."""
    a = similarities / tau
    index = a.argmax(dim=1, keepdim=True)
    log_z = torch.logsumexp(a, dim=1)
    delta = log_z - torch.logsumexp(a.scatter(1, index, 0.0), dim=1)
    mcm = (a.gather(1, index)[:, 0] - log_z).exp()
    return delta, mcm


def gradient_identities(similarities: torch.Tensor, tau: float) -> tuple[float, float]:
    """Largest deviation of ∂ΔE/∂s_1 from MCM/τ and of ∂MCM/∂s_1 from MCM(1 − MCM)/τ, relative to 1/τ."""
    s = similarities.double().clone().requires_grad_()
    delta, mcm = _scores(s, tau)
    index = s.argmax(dim=1, keepdim=True)
    (of_delta,) = torch.autograd.grad(delta.sum(), s, retain_graph=True)
    (of_mcm,) = torch.autograd.grad(mcm.sum(), s)
    p = mcm.detach()
    first = (of_delta.gather(1, index)[:, 0] * tau - p).abs().max()
    second = (of_mcm.gather(1, index)[:, 0] * tau - p * (1 - p)).abs().max()
    return float(first), float(second)


@dataclass(frozen=True)
class ManyClasses:
    """K of the classes, at one temperature.

    Attributes:
        ratio: median of b / e^a.
        assumption: share of the images with b of at least ten times e^a.
        error, error_mcm: median relative errors of the two expansions.
        wider: share of the pairs with s_1 > s_1' whose gap is wider than MCM's, of `pairs`.
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
            inside, outside = (_delta_and_mcm(one.double(), temperature, c) for one in (known, unknown))
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


def _delta_and_mcm(similarities: torch.Tensor, tau: float, c: int) -> tuple[np.ndarray, np.ndarray]:
    """ΔEnergy and MCM at one temperature."""
    return delta_energy(similarities, tau, c).cpu().numpy(), mcm(similarities, tau).cpu().numpy()


def largest_excess(first: np.ndarray, second: np.ndarray) -> float:
    """The largest P(first ≥ λ) − P(second ≥ λ) over all λ: it is reached at a value of `first`."""
    ordered, other = np.sort(first), np.sort(second)
    above = 1 - np.searchsorted(ordered, ordered, side="left") / len(ordered)
    above_other = 1 - np.searchsorted(other, ordered, side="left") / len(other)
    return float((above - above_other).max())
