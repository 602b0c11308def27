"""Theorem 4: EBM brings the Hessians on original and masked features together. Measured, not assumed.

    E_S(v) = mean CE(L · z·t(v)),   E_S'(v) the same with z ⊙ m,   H = ∇²_v E,   v the context

‖H_S − H_S'‖₂ is the largest |eigenvalue| of a symmetric matrix with as many rows as v has entries (thousands). It is
found by power iteration on Hessian-vector products, x ← (H_S − H_S') x = ∇_v ⟨∇_v (E_S − E_S'), x⟩, without ever
forming a matrix. The mask is that of the trained context and stays fixed.

The Proposition: how far the loss on a new domain T may be from that on the sources S, near the trained context.

    max_{|E_S(θ) − E_S(θ*)| ≤ ϵ} |E_T(θ) − E_S(θ*)|  ≲  |E_T(θ*) − E_S(θ*)| + max ½ |uᵀ(H_T − H_S)u| + ϵ,   θ = θ* + u

The last two terms are what the appendix bounds by O(ε1), the distance of features of one class in both domains, and by
max ½ |uᵀ H_S u|, which is ϵ where the expansion holds. Each is measured. The maxima go over directions: the steepest of
E_T, the largest eigenvectors of H_S, H_T and their difference, and random ones; along each as far as E_S allows. So the
left side is a lower bound of the maximum, and it can only show that the inequality fails.
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


# ϵ in nats, the number of random directions, and of halvings to find the largest step.
LEVEL, RANDOM, HALVINGS = 0.01, 2, 12
Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class GeneralisationGap:
    """The Proposition for one target domain, term by term.

    Attributes:
        target: the domain T; the others are S.
        left: the largest |E_T(θ) − E_S(θ*)| that was found.
        at_optimum: |E_T(θ*) − E_S(θ*)|.
        curvature: the largest ½ |uᵀ(H_T − H_S)u|.
        level: ϵ.
        expanded: the largest ½ |uᵀ H_S u|, which is ϵ if the Taylor expansion holds.
        slope: the largest |∇E_T(θ*)·u|, which the expansion neglects: it assumes that θ* is a minimum in both domains.
        distance: mean ‖z − z̃‖ over pairs of one class, one image of each domain (ε1 is the largest).
        farthest: ε1.
    """

    target: str
    left: float
    at_optimum: float
    curvature: float
    level: float
    expanded: float
    slope: float
    distance: float
    farthest: float

    @property
    def right(self) -> float:
        """The bound: the three terms together."""
        return self.at_optimum + self.curvature + self.level

    def sentence(self) -> str:
        """The result as a sentence."""
        return (
            f"{self.target} after the other domains: {self.left:.4g} {'≤' if self.left <= self.right else 'is NOT ≤'} "
            f"{self.at_optimum:.4g} (at θ*) + {self.curvature:.3g} (Hessians) + {self.level:g} (ϵ). Its assumptions: "
            f"½|uᵀH_S u| is {self.expanded:.3g} where it should be ϵ, |∇E_T·u| = {self.slope:.3g} where it should be "
            f"0, and features of one class are {self.distance:.3g} apart in the mean (ε1 = {self.farthest:.3g})."
        )


def generalisation_gaps(
    classifier: PromptClassifier,
    features: torch.Tensor,
    labels: torch.Tensor,
    domains: list[str],
) -> list[GeneralisationGap]:
    """The Proposition for unit features (N, D), with each of their domains as the target; nothing for one domain."""
    names = sorted(set(domains))
    if len(names) < 2:
        return []
    rows = {name: torch.tensor([one == name for one in domains], device=features.device) for name in names}
    return [_gap(classifier, features, labels, rows[name], name) for name in names]


def _gap(
    classifier: PromptClassifier,
    features: torch.Tensor,
    labels: torch.Tensor,
    target: torch.Tensor,
    name: str,
) -> GeneralisationGap:
    prompts, scale = classifier.prompts, classifier.model.logit_scale

    def risk(rows: torch.Tensor) -> Function:
        return lambda v: nn.functional.cross_entropy(scale * features[rows] @ prompts(v).T, labels[rows])

    source_risk, target_risk = risk(~target), risk(target)
    optimum = classifier.context.detach().float()
    with torch.no_grad():
        at_source, at_target = float(source_risk(optimum)), float(target_risk(optimum))
    products = {
        "S": hessian_product(source_risk, optimum),
        "T": hessian_product(target_risk, optimum),
        "T − S": hessian_product(lambda v: target_risk(v) - source_risk(v), optimum),
    }
    generator = torch.Generator().manual_seed(0)
    point = optimum.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target_risk(point), point)
    directions = [
        gradient,
        *(power_iteration(product, optimum, generator)[2] for product in products.values()),
        *(torch.randn(optimum.shape, generator=generator).to(optimum) for _ in range(RANDOM)),
    ]
    left, curvature, expanded, slope = abs(at_target - at_source), 0.0, 0.0, 0.0
    for direction in directions:
        length = float(direction.norm())
        for sign in (1, -1) if length else ():
            u = farthest_step(source_risk, optimum, sign * direction / length, at_source)
            with torch.no_grad():
                left = max(left, abs(float(target_risk(optimum + u)) - at_source))
            curvature = max(curvature, abs(float((u * products["T − S"](u)).sum())) / 2)
            expanded = max(expanded, abs(float((u * products["S"](u)).sum())) / 2)
            slope = max(slope, abs(float((u * gradient).sum())))
    same = (labels[~target][:, None] == labels[target]).float()
    apart = torch.cdist(features[~target], features[target]) * same
    return GeneralisationGap(
        name,
        left,
        abs(at_target - at_source),
        curvature,
        LEVEL,
        expanded,
        slope,
        distance=float(apart.sum() / same.sum().clamp(min=1)),
        farthest=float(apart.max()),
    )


def farthest_step(function: Function, at: torch.Tensor, direction: torch.Tensor, value: float) -> torch.Tensor:
    """The step along `direction` until |f − value| exceeds ϵ: doubled while it does not, then halved in between."""

    def within(length: float) -> bool:
        with torch.no_grad():
            return abs(float(function(at + length * direction)) - value) <= LEVEL

    low, high = 0.0, 1e-3
    while within(high) and high < 1e3:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low * direction
