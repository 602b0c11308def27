"""Multinomial logistic regression with an L2 penalty, and its C by cross-validation, for a linear probe.

    min over W, b:   mean_i CE(W z_i + b, y_i) + ‖W‖² / (2 C N)

which is scikit-learn's C Σ_i CE_i + ½ ‖W‖². The bias is not penalised. The solver is L-BFGS in double precision from
zero, without random numbers: the same images give the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

# With unit features, smaller values make all classes alike, larger values fit every few-shot sample exactly.
GRID = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5
# If no class has two images, C cannot be chosen.
USUAL_C = 10.0
EXACT, ROUGH = 1e-8, 1e-4
STEPS = {EXACT: 2000, ROUGH: 100}


@dataclass(frozen=True)
class Weights:
    """Rows of `weight` (K, D) and entries of `bias` (K,) are classes; logits are W z + b."""

    weight: torch.Tensor
    bias: torch.Tensor

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (N, K) of features (N, D)."""
        return features @ self.weight.T + self.bias


def fit_logistic(
    features: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    c: float,
    *,
    start: Weights | None = None,
    tolerance: float = EXACT,
) -> Weights:
    """The minimiser, from `start` or zero, to a gradient whose largest entry is at most `tolerance`."""
    wide, count = features.double(), len(labels)
    # The bias absorbs the mean of all images: without it the problem is the same and better conditioned.
    mean = wide.mean(dim=0)
    z = wide - mean
    if start is None:
        start = Weights(z.new_zeros(classes, z.shape[1]), z.new_zeros(classes))
    weight, bias = nn.Parameter(start.weight.clone()), nn.Parameter(start.logits(mean[None])[0])
    targets = nn.functional.one_hot(labels, classes).to(z)
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=STEPS[tolerance],
        tolerance_grad=tolerance,
        tolerance_change=1e-13,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        # The gradient by hand: it is one product, and autograd would double the cost.
        logs = nn.functional.log_softmax(z @ weight.T + bias, dim=1)
        pull = (logs.exp() - targets) / count
        weight.grad, bias.grad = pull.T @ z + weight / (c * count), pull.sum(dim=0)
        return -(logs * targets).sum() / count + weight.square().sum() / (2 * c * count)

    with torch.no_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    return Weights(weight.detach(), bias.detach() - weight.detach() @ mean)


def choose_c(features: torch.Tensor, labels: torch.Tensor, classes: int, grid: Sequence[float] = GRID) -> float:
    """The C with the lowest cross-entropy on held-out images; on ties the smaller C.

    Cross-entropy rather than accuracy: it also measures confidence, which scores depend on, and has no ties. Folds are
    fixed: image j of its class is held out in fold j mod 5. A class of one image is always trained on.
    """
    fold_of = held_out_in(labels)
    folds = [fold for fold in range(FOLDS) if bool((fold_of == fold).any())]
    if not folds:
        return USUAL_C
    z, losses = features.double(), [0.0] * len(grid)
    for fold in folds:
        held_out = fold_of == fold
        weights: Weights | None = None
        for position, c in enumerate(sorted(grid)):
            weights = fit_logistic(z[~held_out], labels[~held_out], classes, c, start=weights, tolerance=ROUGH)
            logits = weights.logits(z[held_out])
            losses[position] += float(nn.functional.cross_entropy(logits, labels[held_out], reduction="sum"))
    return sorted(grid)[losses.index(min(losses))]


def held_out_in(labels: torch.Tensor, folds: int = FOLDS) -> torch.Tensor:
    """The fold (N,) in which each image is held out: 0, 1, … in turn within its class; −1 for a class of one image."""
    folds_of = torch.full_like(labels, -1)
    for label in sorted(set(labels.tolist())):
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) > 1:
            folds_of[rows] = torch.arange(len(rows), device=labels.device) % folds
    return folds_of
