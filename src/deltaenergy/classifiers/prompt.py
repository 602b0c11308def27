"""What prompt learners share: a context before the class names, and the classifier that it leaves behind.

t_k = text([start] v_1 … v_M [name_k] . [end]),   s_k = z · t_k,   v learned, all else frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Outputs, register_classifier
from deltaenergy.classifiers.learner import Learner, TunedClassifier
from deltaenergy.classifiers.methods import Method, check_count
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.text import TextTower
from deltaenergy.models.towers import LearnedPrompts, NamePosition
from deltaenergy.tuning.data import Batch, TrainImages

INITIAL_DEVIATION = 0.02


@dataclass(frozen=True)
class PromptMethod(Method):
    """Base of the methods that learn a context: `context_length` vectors ~ N(0, 0.02²), or begun as some words.

    `name_position` is end, front or middle; with `class_specific` every class has a context of its own.
    """

    learns_prompts = True
    context_length: int = 16
    context_init: str = ""
    name_position: NamePosition = "end"
    class_specific: bool = False

    def check(self) -> None:
        """At least one vector; a known position."""
        check_count(self.name, "context_length", self.context_length)
        if self.name_position not in get_args(NamePosition):
            raise InputError(f"{self.name}: name_position must be end, front or middle, got {self.name_position!r}.")

    def learner(self, model: Model, classes: Sequence[str], data: TrainImages, generator: torch.Generator) -> Learner:
        """A `PromptLearner` with a random context, or one that begins as words."""
        return PromptLearner(model, classes, self, generator)


class PromptLearner(Learner):
    """A learned context; cross-entropy on the cosines."""

    def __init__(self, model: Model, classes: Sequence[str], method: PromptMethod, generator: torch.Generator) -> None:
        super().__init__(model, classes)
        initial = initial_context(require_text(model, method.name), len(self.classes), method, generator)
        self.context = nn.Parameter(initial.to(model.device))
        self.position = method.name_position
        self.class_specific = method.class_specific
        self.prompts = LearnedPrompts(
            require_text(model, method.name),
            self.classes,
            self.context.shape[-2],
            name_position=method.name_position,
            class_specific=method.class_specific,
        )

    def forward(self, batch: Batch) -> Outputs:
        """Cosines with the text features of the present context."""
        texts = self.prompts(self.context)
        return Outputs(batch.features @ texts.T, batch.features, texts)

    def classifier(self) -> PromptClassifier:
        """The text features of the present context."""
        with torch.no_grad():
            texts = self.prompts(self.context)
        context = self.context.detach().clone()
        return PromptClassifier(self.model, self.classes, texts, context, self.position, self.class_specific)


def initial_context(tower: TextTower, classes: int, method: PromptMethod, generator: torch.Generator) -> torch.Tensor:
    """Random vectors, or the embeddings of the method's initial words; float32, one context per class if asked."""
    if method.context_init:
        (ids,) = tower.tokenize([method.context_init])
        words = torch.tensor(ids[1:-1], device=tower.device)
        shared = tower.embedding_weight[words].float().cpu().clone()
        return shared.expand(classes, -1, -1).clone() if method.class_specific else shared
    shape = (method.context_length, tower.width)
    # Drawn on the host, so that every device starts alike.
    return INITIAL_DEVIATION * torch.randn((classes, *shape) if method.class_specific else shape, generator=generator)


@register_classifier
class PromptClassifier(TunedClassifier):
    """Cosines with the text features of a learned context, which is kept beside them."""

    kind = "prompt"

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        text_features: torch.Tensor,
        context: torch.Tensor,
        name_position: NamePosition = "end",
        class_specific: bool = False,
    ) -> None:
        super().__init__(model, classes)
        self._text_features = text_features.to(model.device)
        self.context = context.to(model.device)
        self.name_position = name_position
        self.class_specific = class_specific

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D)."""
        return self._text_features

    def prompts(self) -> LearnedPrompts:
        """The prompts around the context, to run the text tower again."""
        return LearnedPrompts(
            require_text(self.model, "a learned context"),
            self.classes,
            self.context.shape[-2],
            name_position=self.name_position,
            class_specific=self.class_specific,
        )

    def with_classes(self, classes: Sequence[str]) -> PromptClassifier:
        """The same context before other class names."""
        if self.class_specific:
            raise InputError("Every class has a context of its own here; there is none for other class names.")
        names = tuple(classes)
        prompts = LearnedPrompts(
            require_text(self.model, "a learned context"),
            names,
            self.context.shape[-2],
            name_position=self.name_position,
            class_specific=False,
        )
        with torch.no_grad():
            texts = prompts(self.context)
        other = type(self)(self.model, names, texts, self.context, self.name_position)
        other.method, other.training = self.method, self.training
        return other

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (N, K)."""
        return features @ self._text_features.T.to(features)

    def settings(self) -> dict[str, Any]:
        """How the prompts are arranged."""
        return {"name_position": self.name_position, "class_specific": self.class_specific}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The text features, so that loading need not run the text tower, and the context."""
        return {"text_features": self._text_features, "context": self.context}

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> Classifier:
        """A saved classifier."""
        classifier = cls(
            model,
            classes,
            tensors["text_features"],
            tensors["context"],
            config["name_position"],
            config["class_specific"],
        )
        classifier.restore(config)
        return classifier
