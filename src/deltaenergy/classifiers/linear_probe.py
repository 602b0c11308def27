"""Linear probe: logistic regression on the image features, without class names (Radford et al., ICML 2021).

    s_k = (w_k · z + b_k) / L,   W, b = argmin mean_i CE(W z_i + b, y_i) + ‖W‖² / (2 C N)

L is the model's logit scale, so softmax(L s) is the fitted probability, and C is chosen by cross-validated
cross-entropy: that sets the size of the logits, and so the meaning of a score's temperature. The solver is exact and
has no random numbers (`logistic.py`). It learns from the test view of each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs
from deltaenergy.classifiers.logistic import choose_c, fit_logistic
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Positive
from deltaenergy.models.base import Model


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
        """Logits over L."""
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
