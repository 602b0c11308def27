"""Linear probe: logistic regression on the image features, without class names (Radford et al., ICML 2021).

    s_k = (w_k · z + b_k) / L,   W, b = argmin mean_i CE(W z_i + b, y_i) + ‖W‖² / (2 C N)

L is the model's logit scale, so softmax(L s) is the fitted probability, and C is chosen by cross-validated
cross-entropy: that sets the size of the logits, and so the meaning of a score's temperature. It learns from the test
view of each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Positive
from deltaenergy.models.base import Model

# With unit features, smaller values make all classes alike, larger values fit every few-shot sample exactly.
GRID = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5
# If no class has two images, C cannot be chosen.
USUAL_C = 10.0
EXACT, ROUGH = 1e-8, 1e-4
STEPS = {EXACT: 2000, ROUGH: 100}


class LinearProbeClassifier(Classifier):
    """Logits of a linear map, over L."""

    method: LinearProbe
    c: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: LinearProbe) -> None:
        super().__init__(model, classes, method)
        self.weight = nn.Parameter(torch.zeros_like(self.text_features))
        self.bias = nn.Parameter(torch.zeros(len(self.classes), device=model.device))
        self.register_buffer("c", torch.zeros((), device=model.device))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        features, labels = data.mean_features(), data.labels
        c = self.method.c or choose_c(features, labels, len(self.classes))
        found = fit_logistic(features, labels, len(self.classes), c)
        self.weight.data.copy_(found.weight)
        self.bias.data.copy_(found.bias)
        self.c.fill_(c)

    def texts(self) -> torch.Tensor:
        """The directions of the weights, instead of class texts."""
        return nn.functional.normalize(self.weight, dim=-1)

    def forward(self, x: Inputs) -> Outputs:
        z = x.need(Need.FEATURES)
        return Outputs(self._similarities(z), z, self.class_texts(z))

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        return self._similarities(patches)

    def _similarities(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows @ self.weight.T.to(rows) + self.bias.to(rows)) / self.model.logit_scale

    def chosen(self) -> dict[str, float]:
        return {"c": float(self.c)}


@register_method
@dataclass(frozen=True)
class LinearProbe(Method):
    """`c` is the inverse strength of the penalty; none means chosen by cross-validation."""

    name = "linear-probe"
    summary = "logistic regression on the image features; needs no class texts"
    formula = "CE(W z + b, y) + ‖W‖²/(2CN), s = (W z + b)/L"
    paper = "Radford et al., ICML 2021"
    classifier = LinearProbeClassifier
    augments = False
    trains = False
    quick = True
    c: Positive | None = None


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
    """The minimiser, from `start` or zero, to a gradient whose largest entry is at most `tolerance`.

        min over W, b:   mean_i CE(W z_i + b, y_i) + ‖W‖² / (2 C N)

    which is scikit-learn's C Σ_i CE_i + ½ ‖W‖². The bias is not penalised. The solver is L-BFGS in double precision,
    without random numbers: the same images give the same weights.
    """
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


def choose_c(features: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
    """The C with the lowest cross-entropy on held-out images; on ties the smaller C.

    Cross-entropy rather than accuracy: it also measures confidence, which scores depend on, and has no ties. Folds are
    fixed: image j of its class is held out in fold j mod 5. A class of one image is always trained on.
    """
    fold_of = held_out_in(labels)
    folds = [fold for fold in range(FOLDS) if bool((fold_of == fold).any())]
    if not folds:
        return USUAL_C
    z, losses = features.double(), [0.0] * len(GRID)
    for fold in folds:
        held_out = fold_of == fold
        weights: Weights | None = None
        for position, c in enumerate(GRID):
            weights = fit_logistic(z[~held_out], labels[~held_out], classes, c, start=weights, tolerance=ROUGH)
            logits = weights.logits(z[held_out])
            losses[position] += float(nn.functional.cross_entropy(logits, labels[held_out], reduction="sum"))
    return GRID[losses.index(min(losses))]


def held_out_in(labels: torch.Tensor, folds: int = FOLDS) -> torch.Tensor:
    """The fold (N,) in which each image is held out: 0, 1, … in turn within its class; −1 for a class of one image."""
    folds_of = torch.full_like(labels, -1)
    for label in sorted(set(labels.tolist())):
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) > 1:
            folds_of[rows] = torch.arange(len(rows), device=labels.device) % folds
    return folds_of
