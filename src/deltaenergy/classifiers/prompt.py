"""Shared by prompt learners: a context before the class names.

t_k = text([start] v_1 … v_M [name_k] . [end]),   s_k = z · t_k,   v learned, all else frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import Method, TrainViews
from deltaenergy.classifiers.randomness import INITIAL_DEVIATION
from deltaenergy.core.specs import Count
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers.prompts import LearnedPrompts, NamePosition
from deltaenergy.models.towers.text import TextTower


class PromptClassifier(Classifier):
    """Cosines with the texts of a learned context; the loss is cross-entropy unless a subclass says more."""

    method: PromptMethod
    takes_other_classes = True

    def __init__(self, model: Model, classes: Sequence[str], method: PromptMethod) -> None:
        super().__init__(model, classes, method)
        self.tower = require_text(model, method.name)
        self.prompts = LearnedPrompts(
            self.tower,
            self.classes,
            method.length(self.tower),
            name_position=method.name_position,
            class_specific=method.class_specific,
        )
        shape = (self.prompts.context_length, self.tower.width)
        self.context = nn.Parameter(torch.zeros((len(self.classes), *shape) if method.class_specific else shape))
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        initial = initial_context(self.tower, tuple(self.context.shape), self.method.context_init, generator)
        self.context.data.copy_(initial)

    def texts(self) -> torch.Tensor:
        return self.prompts(self.context)

    def with_classes(self, classes: str | Sequence[str]) -> Classifier:
        if self.method.class_specific:
            raise InputError("Every class has its own context, so other class names have none.")
        return super().with_classes(classes)


@dataclass(frozen=True)
class PromptMethod(Method):
    """Base of the methods that learn a context: `context_length` vectors ~ N(0, 0.02²), or initialised as words.

    `name_position` is end, front or middle; with `class_specific` every class has its own context.
    """

    classifier: ClassVar[type[Classifier]] = PromptClassifier
    takes_terms = True
    context_length: Count = 16
    context_init: str = ""
    name_position: NamePosition = "end"
    class_specific: bool = False

    def length(self, tower: TextTower) -> int:
        """The number of context vectors: as many as the initial words have tokens, if there are any."""
        return len(tower.words([self.context_init])[0]) if self.context_init else self.context_length


def initial_context(tower: TextTower, shape: tuple[int, ...], words: str, generator: torch.Generator) -> torch.Tensor:
    """Random vectors of `shape` (…, M, W), or the embeddings of the initial words, the same for every class."""
    if not words:
        return INITIAL_DEVIATION * torch.randn(shape, generator=generator)
    (ids,) = tower.words([words])
    return tower.embedding_weight[torch.tensor(ids, device=tower.device)].float().expand(shape)
