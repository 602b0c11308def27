"""ODIN: a small step on the pixels that raises the predicted class, then a hot softmax (Liang et al., ICLR 2018).

    x̃ = x − ε · sign(∇_x CE(L·s(x)/T, argmax_k s_k(x))) / σ_rgb,   score = max_k softmax(L·s(x̃)/T)_k

x are normalised pixels, σ_rgb the deviations they were divided by and L the model's logit scale. Known images
respond to the step more than others. With ε = 0 there is no step: that form (`odin:features`) needs no gradients and
works on features, but it is not the paper's method, and its spec says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel, require_towers
from deltaenergy.needs import Need
from deltaenergy.scores.arrays import check_finite
from deltaenergy.scores.base import Score, ScoreInputs, check_positive
from deltaenergy.scores.logits import msp
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

# Gradients keep every layer's activations: about 100 MB per image for a ViT-B/16.
IMAGES_PER_STEP = 8


@register_score
@dataclass(frozen=True)
class Odin(Score):
    """ODIN through the image tower and the classifier; ε = 0 is the feature-only form."""

    name = "odin"
    summary = "softmax at a high temperature after a small step on the pixels; epsilon=0 is the feature-only form"
    formula = "max_k softmax(L·s(x̃)/T)_k, x̃ = x − ε·sign(∇_x CE(L·s/T, ŷ))/σ_rgb"
    paper = "Liang et al., ICLR 2018"
    needs = frozenset({Need.PIXELS})
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"features": {"epsilon": 0.0}}
    temperature: float = 1000.0
    epsilon: float = 0.0014

    def check(self) -> None:
        """T > 0, ε ≥ 0."""
        check_positive(self.name, temperature=self.temperature)
        if not 0 <= self.epsilon < float("inf"):
            raise InputError(f"{self.name}: epsilon must be a number of at least 0, got {self.epsilon!r}.")
        if self.epsilon == 0:
            object.__setattr__(self, "needs", frozenset())

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        classifier = self.classifier
        if self.epsilon == 0:
            return self._hot_softmax(classifier, inputs.similarities)
        if inputs.pixels is None:
            raise InputError(f"Score {self.spec!r} needs pixels: give it images, not features.")
        if not len(inputs.pixels):
            return inputs.similarities.new_zeros(0)
        check_finite(inputs.pixels.flatten(1).sum(dim=1), inputs.pixels, "pixels")
        parts = [self._step_and_score(classifier, part) for part in torch.split(inputs.pixels, IMAGES_PER_STEP)]
        return torch.cat(parts)

    def gradient(self, classifier: Classifier, pixels: torch.Tensor) -> torch.Tensor:
        """∇_x Σ_i CE(L·s(x_i)/T, argmax): each image's own gradient, since images do not see one another."""
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, because tensors made in inference mode cannot take part in a graph.
            variable = pixels.detach().clone().requires_grad_()
            similarities = classifier.similarities_of_features(_towers(classifier).image_features(variable))
            logits = similarities * (classifier.model.logit_scale / self.temperature)
            loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
            return torch.autograd.grad(loss, variable)[0]

    def _step_and_score(self, classifier: Classifier, pixels: torch.Tensor) -> torch.Tensor:
        deviation = torch.tensor(_towers(classifier).preprocessing.std, device=pixels.device).view(1, 3, 1, 1)
        moved = pixels - self.epsilon * self.gradient(classifier, pixels).sign() / deviation
        with torch.no_grad():
            features = _towers(classifier).image_features(moved)
            return self._hot_softmax(classifier, classifier.similarities_of_features(features))

    def _hot_softmax(self, classifier: Classifier, similarities: torch.Tensor) -> torch.Tensor:
        """In double precision: at T = 1000 all images are near 1/K, and float32 would make ties."""
        hot = msp(similarities.double(), self.temperature / classifier.model.logit_scale)
        return torch.as_tensor(hot)


def _towers(classifier: Classifier) -> TowerModel:
    return require_towers(classifier.model, "odin")
