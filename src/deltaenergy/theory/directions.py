"""Maps of what speaks for z · w, for many directions w: through the tower once, where the method lets it.

z are the features that the classifier compares with its texts. Value path and Grad-CAM look at what one run of the
tower leaves behind (patch features, the last map), and each direction is one more step back from there. Of occlusion,
the features of all covered images are kept, and serve every direction. Rollout runs the tower again for each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deltaenergy.explanation.grad_cam import grad_cam
from deltaenergy.explanation.methods import MapMethod, Subject, make_maps
from deltaenergy.explanation.occlusion import occlusion
from deltaenergy.explanation.targets import Target
from deltaenergy.explanation.tracing import look_at
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.theory.masking import MapFunction, patch_maps


def direction_maps(
    method: MapMethod, subject: Subject, features: torch.Tensor, pixels: torch.Tensor, patches: torch.Tensor | None
) -> MapFunction:
    """The maps of encoded images by one of the methods; the value path is followed once if patch features are given."""
    model, looked_at = subject.model, patches if subject.patches else None
    if method.name == "value-path" and patches is not None:
        return _by_steps(subject, features.float(), lambda z: z, looked_at, pixels, _to_patches(patches))
    if method.name == "grad-cam" and isinstance(model, ConvolutionalModel):
        with torch.inference_mode():
            last = model.feature_map(pixels)
        return _by_steps(subject, last, model.pooled, looked_at, pixels, _to_last_map)
    if method.name == "occlusion":
        return _by_covering(subject, pixels)
    # Of its own refusal of a tower that it cannot look into, each method speaks itself.
    return lambda w: make_maps(method, subject, pixels, lambda rows: _along(w[rows]))


def _by_steps(
    subject: Subject,
    start: torch.Tensor,
    to_features: Callable[[torch.Tensor], torch.Tensor],
    patches: torch.Tensor | None,
    pixels: torch.Tensor,
    to_map: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> MapFunction:
    """`to_map` of `start` and ∂(z · w)/∂start, where z follows from `start`; one way forward serves every w."""
    with torch.inference_mode(False), torch.enable_grad():
        # Copies, because tensors made in inference mode cannot take part in a graph.
        leaf = start.detach().clone().requires_grad_()
        own = None if patches is None else patches.clone()
        inputs = look_at(subject.classifier, to_features(leaf), own, pixels.clone())

    def maps(directions: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            reached = _along(directions)(inputs).sum()
            (towards,) = torch.autograd.grad(reached, [leaf], retain_graph=True)
            return to_map(leaf.detach(), towards).float().cpu()

    return maps


def _by_covering(subject: Subject, pixels: torch.Tensor) -> MapFunction:
    """`occlusion` of each image; what the classifier compares of covered images is computed for the first w alone."""
    kept: list[list[torch.Tensor]] = []

    def features_of(covered: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            if subject.patches:
                z, u = subject.model.image_and_patch_features(covered)
            else:
                z, u = subject.model.image_features(covered), None
            inputs = look_at(subject.classifier, z, u, covered)
            assert inputs.outputs is not None
            return inputs.outputs.features.float()

    def first(row: int, direction: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        kept.append(found)

        def values(covered: torch.Tensor) -> torch.Tensor:
            found.append(features_of(covered))
            return found[-1] @ direction.to(found[-1])

        return torch.as_tensor(occlusion(values, pixels[row]))

    def again(row: int, direction: torch.Tensor) -> torch.Tensor:
        # The same images are covered in the same order.
        found = iter(kept[row])
        return torch.as_tensor(occlusion(lambda _: next(found) @ direction.to(pixels), pixels[row]))

    def maps(directions: torch.Tensor) -> torch.Tensor:
        by_row = again if kept else first
        with torch.inference_mode():
            return torch.stack([by_row(row, directions[row].float()) for row in range(len(pixels))]).float().cpu()

    return maps


def _along(directions: torch.Tensor) -> Target:
    """The target z · w, for w of each image."""

    def target(inputs: ScoreInputs) -> torch.Tensor:
        assert inputs.outputs is not None
        features = inputs.outputs.features
        return (features * directions.clone().to(features)).sum(dim=1)

    return target


def _to_patches(patches: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The value path: u_p · ∂(z · w)/∂z, which is u_p · w where a classifier takes features as they are."""
    along = patch_maps(patches.float().clone())
    return lambda _, towards: along(towards)


def _to_last_map(last: torch.Tensor, towards: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(grad_cam(last, towards))
