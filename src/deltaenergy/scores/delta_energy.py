"""ΔEnergy: how much the energy rises when the most likely classes are reset (ΔEnergy, NeurIPS 2025, eqs. 2–4).

    E0 = −lse(s/τ)
    E1 = −(1/c) Σ_{j≤c} log( e^{s̃/τ} + Σ_{k≠ŷ_j} e^{s_k/τ} ),   ŷ_j the class with the j-th largest similarity
    ΔE = E1 − E0 = −(1/c) Σ_{j≤c} log(1 + x_j),   x_j = (e^{s̃/τ} − e^{s_(j)/τ}) / Z,   Z = Σ_k e^{s_k/τ}

Computed from the last form, in which nothing cancels: x_j = p_(j) · expm1((s̃ − s_(j))/τ); where x_j is near −1
(one class holds most of the mass) log(1 + x_j) is instead the log of the other classes' own sum over Z.
Differences are taken before dividing by τ, so float32 similarities lose nothing.

At τ = 0.01 and CLIP's cosines e^{s̃/τ}/Z is nearly 0, so c = 1 ranks images exactly as msp(0.01); the gain is the
c = 2 term. At τ = 1, c = 1 ranks almost like max-logit. With s̃ = 0 the reset class then simply vanishes; s̃ = the
model's background similarity (the mean cosine of an ID image with the classes it was not given) keeps it alive:
`delta-energy:robust`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count, Positive
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import register_score

# The value of `reset` that is fitted on ID data.
BACKGROUND = "background"
# Below this, a float32 sum of exponentials may have lost digits to underflow.
_SMALLEST = 1e-30
# Entries of one block of rows: 4 MB of float32.
_BLOCK_ENTRIES = 1_048_576
_GROUPS = 64


@array_function
def delta_energy(similarities: torch.Tensor, tau: Positive = 0.01, c: Count = 2, reset: float = 0.0) -> torch.Tensor:
    """ΔEnergy of each row (formula above); `c` is cut to the number of classes, `reset` is s̃."""
    c = min(c, similarities.shape[1])
    first, a, log_rest = _in_blocks(similarities, c, tau)
    b = (reset - first) / tau
    score = _closed_form(a, log_rest, b)
    # Two kinds of rows need more digits: a reset above one of the top c gives terms of both signs, whose sum can
    # cancel; and if one class is far above the rest, float32 exponentials of the rest vanish.
    hard = torch.nonzero((a[:, -1:] < b) | (log_rest < math.log(_SMALLEST))[:, None])[:, 0]
    if len(hard):
        first, a, log_rest = _with_all_digits(similarities[hard].double(), c, tau)
        score[hard] = _closed_form(a, log_rest, (reset - first) / tau)
    return score.to(similarities.dtype)


def _in_blocks(similarities: torch.Tensor, c: int, tau: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_relative_to_first` in blocks of rows that stay in cache, with one scratch array for all of them.

    Fresh memory for each block would cost more than the arithmetic.
    """
    if similarities.requires_grad:
        return _with_all_digits(similarities.double(), c, tau)  # its steps can be differentiated
    rows = max(1, _BLOCK_ENTRIES // similarities.shape[1])
    scratch = torch.empty_like(similarities[:rows])
    parts = [_relative_to_first(part, c, tau, scratch[: len(part)]) for part in torch.split(similarities, rows)]
    first, a, log_rest = zip(*parts)
    return torch.cat(first), torch.cat(a), torch.cat(log_rest)


def _relative_to_first(
    similarities: torch.Tensor, c: int, tau: float, scratch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """s_(1) (N, 1), the top c as a_j = (s_(j) − s_(1))/τ (N, c), and log Σ_{k≠ŷ_1} e^{a_k} (N,), all in float64.

    Written for few passes over the N × K similarities: one for the arg max, one that shifts and scales, one for the
    second largest, one for exponential and sum.
    """
    index = _index_of_largest(similarities)
    first = similarities.gather(1, index).double()
    scale = torch.tensor(1 / tau, dtype=similarities.dtype).item()
    offset = (-scale * first).to(similarities.dtype)
    # s_(1)/τ was rounded: the same small shift for all classes of an image, undone below.
    shift = -scale * first - offset
    shifted = torch.add(offset, similarities, alpha=scale, out=scratch).scatter_(1, index, float("-inf"))
    if c > 2:
        a = (similarities.topk(c, dim=1).values - first) / tau
    else:
        a = torch.cat([torch.zeros_like(first), shifted.amax(dim=1, keepdim=True) + shift], dim=1)[:, :c]
    return first, a, shifted.exp_().sum(dim=1).double().log() + shift[:, 0]


def _index_of_largest(similarities: torch.Tensor) -> torch.Tensor:
    """Arg max over the classes (N, 1), in a way that vectorises for many classes.

    Class k belongs to group k mod G. The groups' maxima are a plain maximum over rows of G, which is fast; the arg max
    is then sought among the groups, and among the classes of one group.
    """
    classes = similarities.shape[1]
    size = classes // _GROUPS
    if size < 4:
        return similarities.argmax(dim=1, keepdim=True)
    maxima = torch.unflatten(similarities[:, : size * _GROUPS], 1, (size, _GROUPS)).amax(dim=1)
    rest = classes - size * _GROUPS
    if rest:
        first = torch.maximum(maxima[:, :rest], similarities[:, size * _GROUPS :])
        maxima = torch.cat([first, maxima[:, rest:]], dim=1)
    members = torch.arange(0, (size + bool(rest)) * _GROUPS, _GROUPS, device=similarities.device)
    # A group without a class in the last, shorter row gets the last class instead, which changes no maximum.
    columns = (maxima.argmax(dim=1, keepdim=True) + members).clamp_(max=classes - 1)
    return columns.gather(1, similarities.gather(1, columns).argmax(dim=1, keepdim=True))


def _with_all_digits(similarities: torch.Tensor, c: int, tau: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same from float64 similarities, summed relative to the second largest, so nothing underflows."""
    top, index = similarities.topk(min(max(c, 2), similarities.shape[1]), dim=1)
    a = (top - top[:, :1]) / tau
    if len(a[0]) == 1:
        return top, a, torch.full_like(a[:, 0], float("-inf"))
    others = similarities.scatter(1, index[:, :1], float("-inf")).sub_(top[:, 1:2]).div_(tau)
    return top[:, :1], a[:, :c], a[:, 1] + others.exp_().sum(dim=1).log()


def _closed_form(a: torch.Tensor, log_rest: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """−(1/c) Σ_j log(1 + x_j), from logits relative to the first: top c (a), all but the first (log-sum), reset (b)."""
    log_z = torch.nn.functional.softplus(log_rest)[:, None]
    p = (a - log_z).exp()
    x = p * torch.expm1((b - a).clamp(max=700))
    # Only ŷ_1 can have more than half the mass; for every other class 1 − p_(j) ≥ 1/2 is exact enough.
    others = torch.log1p(-p)
    others[:, 0] = log_rest - log_z[:, 0]
    in_logs = torch.logaddexp(others, b - log_z)
    near_zero = (x > -0.5) & (x < 1)
    terms = torch.where(near_zero, torch.log1p(torch.where(near_zero, x, 0)), in_logs)
    return -terms.mean(dim=1)


def background_similarity(similarities: torch.Tensor) -> float:
    """The mean similarity of images with every class but the closest.

    With a single class there is no such pair; the reset value is then 0.
    """
    n, k = similarities.shape
    if k == 1 or n == 0:
        return 0.0
    rest = similarities.sum(dtype=torch.float64) - similarities.amax(dim=1).sum(dtype=torch.float64)
    return float(rest / (n * (k - 1)))


@register_score
@dataclass(frozen=True)
class DeltaEnergy(Score):
    """`delta_energy` as a Score; `reset="background"` uses `background_similarity` of the calibration images."""

    name = "delta-energy"
    summary = "how much the energy rises when the top classes are reset"
    formula = "−(1/c) Σ_{j≤c} log(1 − p_(j) + e^{s̃/τ}/Z), p = softmax(s/τ)"
    paper = "ΔEnergy, NeurIPS 2025"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"robust": {"tau": 0.05, "c": 1, "reset": BACKGROUND}}
    tau: Positive = 0.01
    c: Count = 2
    reset: float | Literal["background"] = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        """ID data, if the reset value is estimated on them."""
        return frozenset({Need.ID_DATA} if self.reset == BACKGROUND else ())

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        if self.reset != BACKGROUND:
            return {}
        return {"background": torch.tensor(background_similarity(inputs.similarities), dtype=torch.float64)}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        reset = float(scorer.learned("background")) if isinstance(self.reset, str) else self.reset
        return delta_energy.kernel(inputs.similarities, self.tau, self.c, reset)
