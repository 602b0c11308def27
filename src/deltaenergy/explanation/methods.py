"""The methods by name: from pixels to a map over the image, through the tower, the classifier and the score.

Each runs the tower as far as it must, and hands what it found to the pure function of its name. `usual_method` is the
one that stands the tests of docs/results.md best for a kind of tower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.explanation.grad_cam import grad_cam
from deltaenergy.explanation.maps import value_path
from deltaenergy.explanation.occlusion import occlusion
from deltaenergy.explanation.rollout import rollout
from deltaenergy.explanation.targets import Target
from deltaenergy.explanation.tracing import gradients, look_at, values_without_gradient
from deltaenergy.models.base import TowerModel
from deltaenergy.models.towers.convolutional import ConvolutionalModel

AUTO = "auto"
# Gradients through a whole tower keep every block's activations: about 150 MB per image for a ViT-B/16.
IMAGES_PER_STEP = 8


@dataclass(frozen=True)
class Subject:
    """What answers: a classifier and its model. `patches`: whether it, or the score, looks at patch features."""

    classifier: Classifier
    model: TowerModel
    patches: bool = False


# The target for these rows of a batch.
TargetOf = Callable[[torch.Tensor], Target]
MapOf = Callable[[Subject, torch.Tensor, TargetOf], torch.Tensor]


@dataclass(frozen=True)
class MapMethod:
    """A way to make a map: pixels (n, 3, H, W) -> (n, h, w)."""

    name: str
    summary: str
    paper: str
    run: MapOf


def value_path_map(subject: Subject, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """`value_path` of a batch."""
    with torch.no_grad():
        z, u = subject.model.image_and_patch_features(pixels)
    z, u = z.detach().requires_grad_(), u.detach().requires_grad_()
    inputs = look_at(subject.classifier, z, u if subject.patches else None, pixels)
    towards, own = gradients(target_of(torch.arange(len(pixels))), inputs, [z, u])
    found = value_path(u.detach(), torch.zeros_like(z) if towards is None else towards, own)
    return _in_rows(torch.as_tensor(found), subject.model)


def rollout_map(subject: Subject, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """`rollout` of a batch."""
    tower = subject.model.vision
    if tower is None:
        kind = "has a convolutional one" if isinstance(subject.model, ConvolutionalModel) else "has one without"
        raise InputError(
            "rollout follows the attention of an image tower that is a vision transformer with a class token; "
            f"{subject.model.name!r} {subject.model.closed or kind}. {_instead(subject.model, 'rollout')}"
        )
    run = tower.run(
        pixels.detach().clone().requires_grad_(), subject.model.vision_prompts, patches=subject.patches, attention=True
    )
    inputs = look_at(subject.classifier, run.features, run.patches, pixels)
    found = gradients(target_of(torch.arange(len(pixels))), inputs, run.attention)
    if found[-1] is None:
        raise InputError(
            "rollout follows the class token, and this answer is read off patches alone. Take value-path or occlusion."
        )
    towards = [torch.zeros_like(a) if g is None else g for a, g in zip(run.attention, found)]
    row = torch.as_tensor(rollout([a.detach() for a in run.attention], towards))
    return _in_rows(row[:, 1 : 1 + tower.patch_count], subject.model)


def grad_cam_map(subject: Subject, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """`grad_cam` of a batch."""
    model = subject.model
    if not isinstance(model, ConvolutionalModel):
        raise InputError(
            f"grad-cam looks at the last map of a convolutional image tower, and {model.name!r} "
            f"{model.closed or 'has another kind'}. {_instead(model, 'grad-cam')}"
        )
    with torch.no_grad():
        feature_map = model.feature_map(pixels)
    feature_map = feature_map.detach().requires_grad_()
    patches = model.patches(feature_map) if subject.patches else None
    inputs = look_at(subject.classifier, model.pooled(feature_map), patches, pixels)
    (towards,) = gradients(target_of(torch.arange(len(pixels))), inputs, [feature_map])
    assert towards is not None
    return torch.as_tensor(grad_cam(feature_map.detach(), towards))


def occlusion_map(subject: Subject, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """`occlusion`, image by image."""

    def of_row(row: int) -> torch.Tensor:
        def values(covered: torch.Tensor) -> torch.Tensor:
            target = target_of(torch.full((len(covered),), row))
            return values_without_gradient(subject.model, subject.classifier, target, covered, patches=subject.patches)

        return torch.as_tensor(occlusion(values, pixels[row]))

    return torch.stack([of_row(row) for row in range(len(pixels))])


_ALL = (
    MapMethod(
        "value-path", "what each patch would say if it were the whole image", "Miyai et al., IJCV 2025", value_path_map
    ),
    MapMethod(
        "rollout",
        "gradient × attention, block by block; transformers",
        "Chefer et al., ICCV 2021",
        rollout_map,
    ),
    MapMethod("grad-cam", "gradient × last map; convolutional towers", "Selvaraju et al., ICCV 2017", grad_cam_map),
    MapMethod(
        "occlusion", "what is lost when a part is covered; any tower", "Zeiler & Fergus, ECCV 2014", occlusion_map
    ),
)
METHODS: Mapping[str, MapMethod] = {method.name: method for method in _ALL}


def get_method(name: str, model: TowerModel, needs: frozenset[Need] = frozenset()) -> MapMethod:
    """The method of that name, or for `auto` the usual one of this tower for what looks at `needs` of an image."""
    if name == AUTO:
        return METHODS[usual_method(model, needs)]
    if name not in METHODS:
        raise InputError(f"Unknown method {name!r}.{did_you_mean(name, [AUTO, *METHODS])}")
    return METHODS[name]


def usual_method(model: TowerModel, needs: frozenset[Need] = frozenset()) -> str:
    """The method that docs/results.md supports for this kind of tower; occlusion for a kind that was not measured.

    What runs the tower by itself, from pixels, gives its gradients to nobody; and rollout follows the class token, so
    that it misses what is read off patches.
    """
    if isinstance(model, ConvolutionalModel) and Need.PIXELS not in needs:
        return "grad-cam"
    return "rollout" if model.vision is not None and not needs & {Need.PIXELS, Need.PATCHES} else "occlusion"


def make_maps(method: MapMethod, subject: Subject, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """Maps (n, h, w) of a batch of pixels, a few images at a time."""
    parts = []
    for start in range(0, len(pixels), IMAGES_PER_STEP):
        part = pixels[start : start + IMAGES_PER_STEP]
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, because tensors made in inference mode cannot take part in a graph.
            own = part.clone() if part.is_inference() else part
            found = method.run(subject, own, lambda rows, start=start: target_of(rows + start))  # type: ignore[misc]
        parts.append(found.detach().float().cpu())
    return torch.cat(parts)


def _in_rows(patches: torch.Tensor, model: TowerModel) -> torch.Tensor:
    """(n, P) -> (n, h, w): images are square, and so is the grid of their patches."""
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise InputError(
            f"The {patches.shape[1]} patches of {model.name!r} are no square grid. Take the method occlusion."
        )
    return patches.view(len(patches), side, side)


def _instead(model: TowerModel, refused: str) -> str:
    suits = {"rollout": model.vision is not None, "grad-cam": isinstance(model, ConvolutionalModel)}
    names = [name for name in METHODS if name != refused and suits.get(name, True)]
    return f"Take {', '.join(names[:-1])} or {names[-1]}."
