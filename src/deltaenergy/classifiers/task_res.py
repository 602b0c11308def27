"""TaskRes: a learned residual on fixed class texts (Yu et al., Task Residual for Tuning VLMs, CVPR 2023).

    t_k = norm(t⁰_k + α x_k),   x (K, D) learned from zero,   s_k = z · t_k,   loss CE(L s, y)

Training runs no tower, so stored image features and class vectors are enough. The paper's Adam at rate 0.002 moves
residuals on texts before normalisation, whose length is about ten for CLIP. Here t⁰ has unit length, like stored
vectors, and the common recipe is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.methods import register_method
from deltaenergy.classifiers.zero_shot import FrozenTextClassifier, FrozenTextMethod
from deltaenergy.core.specs import Positive
from deltaenergy.models.base import Model


class TaskResClassifier(FrozenTextClassifier):
    """Cosines with class texts that a residual has moved."""

    method: TaskRes

    def __init__(self, model: Model, classes: Sequence[str], method: TaskRes) -> None:
        super().__init__(model, classes, method)
        self.residual = nn.Parameter(torch.zeros_like(self.text_features))

    def texts(self) -> torch.Tensor:
        return nn.functional.normalize(self.frozen_texts + self.method.alpha * self.residual, dim=-1)


@register_method
@dataclass(frozen=True)
class TaskRes(FrozenTextMethod):
    """α scales the residual, which starts at zero: untrained, it is zero-shot."""

    name = "task-res"
    summary = "a learned residual on the class texts; needs no text encoder"
    formula = "CE(L·z·t_k, y), t_k = norm(t⁰_k + α x_k)"
    paper = "Yu et al., CVPR 2023"
    classifier = TaskResClassifier
    takes_terms = True
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"alpha": (0.1, 0.5, 1.0)}
    alpha: Positive = 0.5
