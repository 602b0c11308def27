"""Run a tower so that gradients reach what a method looks at: patch features, attention weights, or the last map."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.explanation.targets import Target
from deltaenergy.models.base import TowerModel
from deltaenergy.scores.base import ScoreInputs


def look_at(
    classifier: Classifier, features: torch.Tensor, patches: torch.Tensor | None, pixels: torch.Tensor
) -> ScoreInputs:
    """What a score may look at, with gradients to features and patches if these have them."""
    wide = features.float() if features.dtype not in (torch.float32, torch.float64) else features
    outputs = classifier(Inputs(wide, patches, pixels=pixels))
    return ScoreInputs(outputs.similarities, wide, patches, pixels, outputs)


def gradients(target: Target, inputs: ScoreInputs, wanted: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """∂y/∂w for each of the tensors, None for one that y does not look at. No image sees another: each has its own.

    Raises `InputError` where y has no gradient at all: some scores sort, sample or take steps of their own.
    """
    try:
        values = target(inputs)
        found = torch.autograd.grad(values.sum(), list(wanted), allow_unused=True) if values.requires_grad else ()
    except DeltaEnergyError:
        raise
    except (RuntimeError, TypeError) as error:  # in the words of torch: a step without a derivative, or without a graph
        raise _no_gradient(target) from error
    if all(one is None for one in found):
        raise _no_gradient(target)
    return list(found)


def values_without_gradient(
    model: TowerModel, classifier: Classifier, target: Target, pixels: torch.Tensor, *, patches: bool
) -> torch.Tensor:
    """What is explained, of each image (n,), from pixels."""
    with torch.inference_mode():
        found: torch.Tensor | None = None
        if patches:
            features, found = model.image_and_patch_features(pixels)
        else:
            features = model.image_features(pixels)
        return target(look_at(classifier, features, found, pixels)).detach()


def _no_gradient(target: Target) -> InputError:
    spec = getattr(target, "spec", None)
    who = f"The score {spec!r}" if spec else "This classifier"
    return InputError(
        f"{who} has no gradient that could be shown as a map. Take the method occlusion, which needs none."
    )
