"""Theorem 4: EBM brings the Hessians on original and masked features together. Measured, not assumed.

    E_S(v) = mean CE(L · z·t(v)),   E_S'(v) the same with z ⊙ m,   H = ∇²_v E,   v the context

‖H_S − H_S'‖₂ is the largest |eigenvalue| of a symmetric matrix with as many rows as v has entries (thousands). It is
found by power iteration on Hessian-vector products, x ← (H_S − H_S') x = ∇_v ⟨∇_v (E_S − E_S'), x⟩, without ever
forming a matrix. The mask is that of the trained context and stays fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Outputs
from deltaenergy.classifiers.ebm import compare, keep_mask
from deltaenergy.classifiers.prompt import PromptClassifier

ITERATIONS = 60
TOLERANCE = 1e-3


@dataclass(frozen=True)
class HessianCheck:
    """Spectral norms at the trained context, and how far the theorem's assumptions are met.

    Attributes:
        original, masked: ‖H_S‖ and ‖H_S'‖.
        distance: ‖H_S − H_S'‖.
        curvature: ‖∇² L_ΔE‖, which the theorem assumes to be O(ε).
        gradient: ‖∇ E_S‖, which it assumes to be 0; `gradient_start` is the same for a random context.
        epsilon: the mean of ‖z − z ⊙ m‖, which it assumes to be small.
        converged: whether every power iteration settled.
    """

    original: float
    masked: float
    distance: float
    curvature: float
    gradient: float
    gradient_start: float
    epsilon: float
    converged: bool

    @property
    def relative(self) -> float:
        """The distance in units of ‖H_S‖."""
        return self.distance / self.original if self.original > 0 else float("nan")

    def sentence(self) -> str:
        """The result as a sentence."""
        settled = "" if self.converged else " (power iteration has not settled)"
        return (
            f"‖H_S − H_S'‖ = {self.distance:.4g}, with ‖H_S‖ = {self.original:.4g} and ‖H_S'‖ = {self.masked:.4g}"
            f" (ratio {self.relative:.3g}){settled}."
        )


def check_hessians(
    classifier: PromptClassifier, features: torch.Tensor, labels: torch.Tensor, p: float, tau: float
) -> HessianCheck:
    """Theorem 4's quantities for labelled unit features (N, D). `tau` is the τ' of L_ΔE."""
    prompts, scale = classifier.prompts, classifier.model.logit_scale
    texts = classifier.text_features.float()
    mask = keep_mask(Outputs(features @ texts.T, features, texts), p)
    generator = torch.Generator().manual_seed(0)

    def risk(context: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scale * images @ prompts(context).T, labels)

    def energy_change(context: torch.Tensor) -> torch.Tensor:
        found = prompts(context)
        plain, masked = compare(features, found) / tau, compare(features * mask, found) / tau
        return (torch.logsumexp(plain, dim=1) - torch.logsumexp(masked, dim=1)).mean()

    context = classifier.context.detach().float()
    norms = [
        power_iteration(hessian_product(function, context), context, generator)
        for function in (
            lambda v: risk(v, features),
            lambda v: risk(v, features * mask),
            lambda v: risk(v, features) - risk(v, features * mask),
            energy_change,
        )
    ]
    start = 0.02 * torch.randn(context.shape, generator=generator).to(context)
    return HessianCheck(
        original=norms[0][0],
        masked=norms[1][0],
        distance=norms[2][0],
        curvature=norms[3][0],
        gradient=_gradient_norm(lambda v: risk(v, features), context),
        gradient_start=_gradient_norm(lambda v: risk(v, features), start),
        epsilon=float((features - features * mask).norm(dim=1).mean()),
        converged=all(settled for _, settled, _ in norms),
    )


def hessian_product(
    function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The map x ↦ ∇² f(at) x. The gradient's graph is built once and used for every product."""
    point = at.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(point), point, create_graph=True)

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((gradient * x).sum(), point, retain_graph=True)[0]

    return product


def power_iteration(
    product: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor, generator: torch.Generator
) -> tuple[float, bool, torch.Tensor]:
    """The largest |eigenvalue| of a symmetric operator on tensors `like` this one, whether it settled, and a unit
    eigenvector of it, as far as it did.
    """
    x = torch.randn(like.shape, generator=generator).to(like)
    x = x / x.norm()
    norm = 0.0
    for _ in range(ITERATIONS):
        y = product(x)
        new = float(y.norm())
        if new == 0.0:
            return 0.0, True, x
        x = y / new
        if abs(new - norm) <= TOLERANCE * new:
            return new, True, x
        norm = new
    return norm, False, x


def _gradient_norm(function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> float:
    point = at.detach().clone().requires_grad_()
    return float(torch.autograd.grad(function(point), point)[0].norm())
