"""MaPLe: contexts in the text tower, and image tokens made from them (Khattak et al., CVPR 2023).

    p_b = A_b v_b + a_b,   b = 0 … J−1
    t_k = text([start] v_0 "of a" [name_k] . [end]; v_1 … v_{J−1}),   L = CE(L · z(p)·t_k(v), y)

v_b are the two context vectors of block b, A_b is a learned linear map from the text tower's width to the image
tower's, so the same vectors control both towers. The context starts as "a photo"; "of a" is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.image_tokens import WORDS, TokenClassifier, TokenMethod
from deltaenergy.classifiers.methods import TrainViews, register_method
from deltaenergy.core.specs import Range
from deltaenergy.models.base import Model, require_vision


class MapleClassifier(TokenClassifier):
    """Deep contexts with a linear map from each to the image tower's tokens."""

    method: Maple

    def __init__(self, model: Model, classes: Sequence[str], method: Maple) -> None:
        super().__init__(model, classes, method)
        width = require_vision(model, method.name).width
        self.maps = nn.Parameter(torch.zeros(self.depth, width, self.tower.width))
        self.biases = nn.Parameter(torch.zeros(self.depth, width))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Contexts, and maps initialised as torch's Linear: one for the first block, one copied for all others."""
        self.start_contexts(generator)
        _, height, width = self.maps.shape
        for blocks in (slice(0, 1), slice(1, None)):
            drawn = (torch.rand(height, width + 1, generator=generator) * 2 - 1) * width**-0.5
            self.maps.data[blocks] = drawn[:, :-1].to(self.maps)
            self.biases.data[blocks] = drawn[:, -1].to(self.biases)

    def image_tokens(self) -> torch.Tensor:
        """A_b v_b + a_b for every block."""
        contexts = torch.cat([self.context[None], self.deep])
        return contexts @ self.maps.transpose(1, 2) + self.biases[:, None]


@register_method
@dataclass(frozen=True)
class Maple(TokenMethod):
    """`tokens` is the number of context vectors, and so of image tokens, in each block."""

    name = "maple"
    summary = "deep contexts in the text encoder, and image tokens made from them"
    formula = "CE(L·z(p)·t_k(v), y), p_b = A_b v_b + a_b in the first J blocks"
    paper = "Khattak et al., CVPR 2023"
    classifier = MapleClassifier
    recipe: ClassVar[Mapping[str, Any]] = {"lr": 0.0035, "batch_size": 4, "epochs": 50}
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {"tokens": (2, 4)}
    tokens: Annotated[int, Range(1, len(WORDS))] = 2

    @property
    def context_length(self) -> int:
        return self.tokens

    @property
    def tokens_of_image(self) -> int:
        return self.tokens
