"""EBM: ΔEnergy-based bound maximisation, a loss term for any prompt learner (ΔEnergy, NeurIPS 2025, eqs. 5–8).

    + λ0 · exp( mean_i [E2(x_i) − E0(x_i)] )
    E0 = −lse(s/τ'),   E2 = −lse(s'/τ'),   s'_k = (z ⊙ m) · t_k

m keeps the ⌈pD⌉ largest entries of z ⊙ h1, where h1 is the text feature of the predicted class under the current
prompts; no gradient flows through m, and the masked feature is not normalised again. The exponential is of the batch
mean.

The paper's text divides by τ' = 0.01 and its proofs by nothing (τ' = 1). At 0.01 masking raises the predicted class's
cosine so much that e^L is about 1e-4 on CLIP features: the term nearly vanishes. The default is therefore 1, and there
is a warning if e^L falls below 1e-4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.methods import Term, register_method
from deltaenergy.core.specs import NonNegative, Positive, PositiveShare

VANISHED = 1e-4


@register_method
@dataclass(frozen=True)
class Ebm(Term):
    """λ0 is `weight`, p the kept fraction, τ' is `loss_tau`."""

    name = "ebm"
    summary = "raises the lower bound of ΔEnergy on masked features; ebm means coop+ebm"
    formula = "+ λ0·exp(mean_i[lse(z·t/τ') − lse((z⊙m)·t/τ')]), m = top ⌈pD⌉ of z⊙h1"
    paper = "ΔEnergy, NeurIPS 2025"
    usual_method = "coop"
    tested_with = "delta-energy"
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"weight": (0.1, 0.5, 1.0, 2.0), "p": (0.4, 0.5, 0.6)}
    weight: NonNegative = 1.0
    p: PositiveShare = 0.6
    loss_tau: Positive = 1.0

    def __call__(self, outputs: Outputs, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, float]]:
        exponential = energy_change(outputs, self.p, self.loss_tau).mean().exp()
        return self.weight * exponential, {"e^L": float(exponential.detach())}

    def warning(self, logged: Mapping[str, float]) -> str | None:
        """Warn if the term has vanished."""
        value = logged.get("e^L", math.nan)
        if not value < VANISHED:
            return None
        return (
            f"The EBM term has vanished (e^L = {value:.1e}): it has almost no effect. Use a larger loss_tau than "
            f"{self.loss_tau:g}, such as ebm(loss_tau=1)."
        )


def energy_change(outputs: Outputs, p: float, tau: float) -> torch.Tensor:
    """E2 − E0 of each image (B,): how much masking its feature changes the energy."""
    mask = keep_mask(outputs, p)
    masked = compare(outputs.features * mask, outputs.texts)
    plain = compare(outputs.features, outputs.texts)
    return torch.logsumexp(plain / tau, dim=1) - torch.logsumexp(masked / tau, dim=1)


def keep_mask(outputs: Outputs, p: float) -> torch.Tensor:
    """1 for the ⌈pD⌉ largest entries of z ⊙ h1, else 0: (B, D), without gradient."""
    with torch.no_grad():
        predicted = compare(outputs.features, outputs.texts).argmax(dim=1)
        if outputs.texts.ndim == 3:
            nearest = outputs.texts[torch.arange(len(predicted), device=predicted.device), predicted]
        else:
            nearest = outputs.texts[predicted]
        product = outputs.features * nearest
        # p·D is rounded first, so 0.6 · 5 keeps 3 entries although it is 3.0000000000000004 in floating point.
        kept = math.ceil(round(p * product.shape[1], 9))
        return torch.zeros_like(product).scatter(1, product.topk(kept, dim=1).indices, 1.0)


def compare(features: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    """Inner products (B, K) of features (B, D) with texts (K, D) or (B, K, D)."""
    if texts.ndim == 3:
        return torch.einsum("bd,bkd->bk", features, texts)
    return features @ texts.T
