"""A tuning method in one file: zero-shot similarities with a learned bias per class.

s_k = z · t_k + b_k,   b from zero, trained by cross-entropy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers import Inputs, Need, Outputs, TemplateClassifier, TemplateMethod
from deltaenergy.models import Model


class ClassBiasClassifier(TemplateClassifier):
    """The class texts of a template, and a bias for each class."""

    def __init__(self, model: Model, classes: Sequence[str], method: ClassBias) -> None:
        super().__init__(model, classes, method)
        self.bias = nn.Parameter(torch.zeros(len(self.classes), device=model.device))

    def forward(self, x: Inputs) -> Outputs:
        """Cosines and biases."""
        z = x.need(Need.FEATURES)
        texts = self.class_texts(z)
        return Outputs(z @ texts.T + self.bias.to(z), z, texts)


@dataclass(frozen=True)
class ClassBias(TemplateMethod):
    """Fields are hyper-parameters; this one inherits `template`."""

    name = "class-bias"
    summary = "zero-shot similarities with a learned bias per class"
    formula = "CE(L·(z·t_k + b_k), y)"
    paper = "an example"
    classifier = ClassBiasClassifier
