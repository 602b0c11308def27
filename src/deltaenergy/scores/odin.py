"""ODIN: a small step on the pixels that raises the predicted class, then a hot softmax (Liang et al., ICLR 2018).

    x̃ = x − ε · sign(∇_x CE(L·s(x)/T, argmax_k s_k(x))) / σ_rgb,   score = max_k softmax(L·s(x̃)/T)_k

x are normalised pixels, σ_rgb the deviations they were divided by and L the model's logit scale. The step changes known
images more than others. With ε = 0 there is no step: that form needs no gradients and works on features, but it is not
the paper's method, and ranks images as mcm does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Inputs
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import NonNegative, Positive, bounded
from deltaenergy.errors import InputError
from deltaenergy.models.base import require_towers
from deltaenergy.scores.arrays import as_tensor, check_finite
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.msp import msp
from deltaenergy.scores.registry import register_score

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier

# Gradients keep every layer's activations: about 100 MB per image for a ViT-B/16.
IMAGES_PER_STEP = 8
SimilaritiesOf = Callable[[torch.Tensor], torch.Tensor]


@bounded
def odin(
    similarities_of: SimilaritiesOf,
    pixels: Any,
    std: Sequence[Positive] = (1.0, 1.0, 1.0),
    *,
    temperature: Positive = 1000.0,
    epsilon: NonNegative = 0.0014,
    logit_scale: Positive = 100.0,
) -> Any:
    """ODIN's score of each image (formula above), in double precision.

    Args:
        similarities_of: pixels (n, 3, H, W) -> similarities (n, K), differentiable. It gets a few images at a time.
        pixels: normalised images (N, 3, H, W), tensor or array.
        std: σ_rgb.
        temperature: T.
        epsilon: ε.
        logit_scale: L.
    """
    images = as_tensor(pixels, "pixels")
    if images.ndim != 4:
        raise InputError(f"pixels must be an (images, channels, height, width) array, got {tuple(images.shape)}.")
    check_finite(images.sum(), images, "pixels")
    if len(std) not in (1, images.shape[1]):
        raise InputError(f"odin: std must have one number per channel ({images.shape[1]}), got {len(std)}.")
    deviation = torch.tensor(std, device=images.device).view(1, -1, 1, 1)
    scores = [torch.zeros(0, dtype=torch.float64, device=images.device)]
    for part in torch.split(images, IMAGES_PER_STEP) if len(images) else ():
        gradient = pixel_gradient(similarities_of, part, temperature / logit_scale)
        moved = part - epsilon * gradient.sign() / deviation
        with torch.no_grad():
            scores.append(hot_softmax(similarities_of(moved), temperature / logit_scale))
    values = torch.cat(scores)
    return values.numpy() if isinstance(pixels, np.ndarray) else values


def pixel_gradient(similarities_of: SimilaritiesOf, pixels: torch.Tensor, temperature: float) -> torch.Tensor:
    """∇_x Σ_i CE(s(x_i)/T, argmax): each image's own gradient, because images are independent."""
    with torch.inference_mode(False), torch.enable_grad():
        # A copy, because tensors made in inference mode cannot take part in a graph.
        variable = pixels.detach().clone().requires_grad_()
        logits = similarities_of(variable) / temperature
        loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
        return torch.autograd.grad(loss, variable)[0]


def hot_softmax(similarities: torch.Tensor, temperature: float) -> torch.Tensor:
    """max_k softmax(s/T)_k in double precision: at T = 1000 all images are near 1/K, and float32 would make ties."""
    return msp.kernel(similarities.double(), temperature)


@register_score
@dataclass(frozen=True)
class Odin(Score):
    """`odin` as a Score, through the image tower and the classifier; ε = 0 is the feature-only form."""

    name = "odin"
    summary = "softmax at a high temperature after a small step on the pixels; epsilon=0 is the feature-only form"
    formula = "max_k softmax(L·s(x̃)/T)_k, x̃ = x − ε·sign(∇_x CE(L·s/T, ŷ))/σ_rgb"
    paper = "Liang et al., ICLR 2018"
    temperature: Positive = 1000.0
    epsilon: NonNegative = 0.0014

    @property
    def needs(self) -> frozenset[Need]:
        """Pixels, if there is a step to take on them."""
        return frozenset({Need.PIXELS} if self.epsilon > 0 else ())

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        if self.epsilon == 0:
            return hot_softmax(inputs.similarities, self.temperature / scorer.classifier.model.logit_scale)
        model = require_towers(scorer.classifier.model, self.name)
        values = odin(
            through_the_tower(scorer.classifier),
            inputs.need(Need.PIXELS),
            model.preprocessing.std,
            temperature=self.temperature,
            epsilon=self.epsilon,
            logit_scale=model.logit_scale,
        )
        return torch.as_tensor(values)


def through_the_tower(classifier: Classifier) -> SimilaritiesOf:
    """The map from pixels to similarities, differentiable."""
    model = require_towers(classifier.model, "odin")

    def similarities(pixels: torch.Tensor) -> torch.Tensor:
        patches = None
        if Need.PATCHES in classifier.needs_to_predict:
            features, patches = model.image_and_patch_features(pixels)
        else:
            features = model.image_features(pixels)
        return classifier(Inputs(features, patches, pixels=pixels)).similarities

    return similarities
