"""CoCoOp: a context that each image shifts (Zhou et al., Conditional Prompt Learning, CVPR 2022).

    v_m(z) = v_m + π(z),   π(z) = W2 relu(W1 z + b1) + b2  (D → D/16 → W),   s_k = z · t_k(v(z))

Every image has text features of its own. The shared prefix is per image then, and still serves all its classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier, Outputs, register_classifier
from deltaenergy.classifiers.learner import Learner, TunedClassifier, linear_weight
from deltaenergy.classifiers.methods import register_method
from deltaenergy.classifiers.prompt import PromptMethod, initial_context
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.towers import LearnedPrompts
from deltaenergy.tuning.data import Batch, TrainImages

REDUCTION = 16
# Images whose text features are computed together; each brings K of them.
IMAGES_AT_ONCE = 16


@register_method
@dataclass(frozen=True)
class CoCoOp(PromptMethod):
    """Four context vectors begun as "a photo of a", and a small network that shifts them."""

    name = "cocoop"
    summary = "a learned context that a small network shifts for each image"
    formula = "CE(L·z·t_k(v + π(z)), y), π(z) = W2 relu(W1 z)"
    paper = "Zhou et al., CVPR 2022"
    context_length: int = 4
    context_init: str = "a photo of a"

    def check(self) -> None:
        """The context is shared: the image, not the class, shifts it."""
        super().check()
        if self.class_specific:
            raise InputError("cocoop: class_specific contexts are not part of the method; leave it out.")

    def learner(self, model: Model, classes: Sequence[str], data: TrainImages, generator: torch.Generator) -> Learner:
        """Context and network; the mean training image stands for the neutral one."""
        neutral = nn.functional.normalize(data.mean_features().mean(dim=0), dim=0)
        return CoCoOpLearner(model, classes, self, neutral, generator)


class CoCoOpLearner(Learner):
    """The context and the network that shifts it."""

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        method: CoCoOp,
        neutral: torch.Tensor,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, classes)
        text = require_text(model, method.name)
        width, hidden = text.width, max(1, model.feature_dim // REDUCTION)
        self.context = nn.Parameter(initial_context(text, len(self.classes), method, generator).to(model.device))
        self.w1 = linear_weight(hidden, model.feature_dim, generator, model.device)
        self.b1 = nn.Parameter(torch.zeros(hidden, device=model.device))
        self.w2 = linear_weight(width, hidden, generator, model.device)
        self.b2 = nn.Parameter(torch.zeros(width, device=model.device))
        self.position = method.name_position
        self.neutral = neutral
        self.prompts = LearnedPrompts(text, self.classes, self.context.shape[0], name_position=method.name_position)

    def forward(self, batch: Batch) -> Outputs:
        """Cosines of each image with the text features of its own context."""
        texts = self.prompts.each(shifted_contexts(batch.features, dict(self.named_parameters())))
        return Outputs(torch.einsum("bd,bkd->bk", batch.features, texts), batch.features, texts)

    def classifier(self) -> CoCoOpClassifier:
        """A copy of the present parameters."""
        tensors = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        return CoCoOpClassifier(self.model, self.classes, {**tensors, "neutral": self.neutral}, self.prompts)


def shifted_contexts(features: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Contexts v + π(z), one per image: (B, M, W)."""
    hidden = torch.relu(features @ parameters["w1"].T + parameters["b1"])
    shift = hidden @ parameters["w2"].T + parameters["b2"]
    return parameters["context"] + shift[:, None, :]


@register_classifier
class CoCoOpClassifier(TunedClassifier):
    """Text features are computed for each image, so similarities cost a run of the text tower per image."""

    kind = "cocoop"

    def __init__(
        self, model: Model, classes: Sequence[str], tensors: Mapping[str, torch.Tensor], prompts: LearnedPrompts
    ) -> None:
        super().__init__(model, classes)
        self._tensors = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        self._prompts = prompts
        self._neutral_texts: torch.Tensor | None = None

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D) for a neutral image: the mean direction of the training images."""
        if self._neutral_texts is None:
            self._neutral_texts = self._texts(self._tensors["neutral"][None])[0]
        return self._neutral_texts

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (N, K) of each image with its own text features."""
        blocks = [
            torch.einsum("bd,bkd->bk", block, self._texts(block).to(block))
            for block in torch.split(features, IMAGES_AT_ONCE)
            if len(block)
        ]
        return torch.cat(blocks) if blocks else features.new_zeros(0, len(self.classes))

    def _texts(self, features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._prompts.each(shifted_contexts(features.to(self._tensors["w1"]), self._tensors))

    def settings(self) -> dict[str, Any]:
        """Where the name stands."""
        return {"name_position": self._prompts.name_position}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Context, network and neutral image."""
        return dict(self._tensors)

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> Classifier:
        """A saved classifier."""
        prompts = LearnedPrompts(
            require_text(model, "cocoop"), classes, tensors["context"].shape[0], name_position=config["name_position"]
        )
        classifier = cls(model, classes, tensors, prompts)
        classifier.restore(config)
        return classifier
