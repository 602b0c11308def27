"""From pixels to a heatmap: what is explained, and how each method runs encoder, classifier and score for it.

A *target* is what is explained: the similarity of a class, or the score. A method traces it through the image encoder
and calls the pure function of its name.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.core.needs import Need
from deltaenergy.errors import DeltaEnergyError, InputError, did_you_mean
from deltaenergy.explanation.maps import grad_cam, occlusion, rollout, value_path
from deltaenergy.models.base import TowerModel
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.scores.base import FoldScorer, ScoreInputs, Scorer

AUTO = "auto"
CLASS, SCORE = "class", "score"
# Gradients through a whole tower keep every block's activations: about 150 MB per image for a ViT-B/16.
IMAGES_PER_STEP = 8
# With more class names than this, an error lists only the nearest.
_FEW_NAMES = 20

# Inputs of a score for n images -> y of each (n,).
Target = Callable[[ScoreInputs], torch.Tensor]
# The target for these rows of a batch.
TargetOf = Callable[[torch.Tensor], Target]


@dataclass(frozen=True)
class ExplainedModel:
    """A classifier and its model. `patches`: whether it, or the score, needs patch features."""

    classifier: Classifier
    model: TowerModel
    patches: bool = False

    def inputs(self, pixels: torch.Tensor) -> ScoreInputs:
        with torch.inference_mode():
            if self.patches:
                return classify_for_score(self.classifier, *self.model.image_and_patch_features(pixels), pixels)
            return classify_for_score(self.classifier, self.model.image_features(pixels), None, pixels)


@dataclass(frozen=True)
class MapMethod:
    """A way to make a heatmap: pixels (n, 3, H, W) -> (n, h, w)."""

    name: str
    summary: str
    run: Callable[[ExplainedModel, torch.Tensor, TargetOf], torch.Tensor]


def class_target(positions: torch.Tensor) -> Target:
    return lambda inputs: inputs.similarities.gather(1, positions.to(inputs.similarities.device)[:, None])[:, 0]


def score_target(scorer: Scorer) -> Target:
    """The score. Tensors learned in inference mode are copied, because they cannot have gradients."""
    if isinstance(scorer, FoldScorer):
        return FoldScorer.of([_outside_inference(one) for one in scorer.scorers])
    return _outside_inference(scorer)


def _outside_inference(scorer: Scorer) -> Scorer:
    state = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in scorer.state.items()}
    return replace(scorer, state=state)


def class_position(name: str, classifier: Classifier, *, scored: bool) -> int:
    """The position of a named class, or an error that suggests near names."""
    if name in classifier.classes:
        return classifier.classes.index(name)
    words = [CLASS, *([SCORE] if scored else [])]
    near: Sequence[str] = classifier.classes
    if len(near) > _FEW_NAMES:
        near = difflib.get_close_matches(name, near, n=5, cutoff=0.4)
    raise InputError(
        f"Unknown `target` {name!r}: it is neither {' nor '.join(words)} nor a class."
        + did_you_mean(name, [*words, *near])
    )


def classify_for_score(
    classifier: Classifier, features: torch.Tensor, patches: torch.Tensor | None, pixels: torch.Tensor
) -> ScoreInputs:
    """The inputs of a score, with gradients to features and patches if these have them."""
    wide = features.float() if features.dtype not in (torch.float32, torch.float64) else features
    outputs = classifier(Inputs(wide, patches, pixels=pixels))
    return ScoreInputs(outputs.similarities, wide, patches, pixels, outputs)


def gradients(target: Target, inputs: ScoreInputs, wanted: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """∂y/∂w for each tensor, None if y does not depend on it. Images are independent of each other.

    Raises `InputError` if y has no gradient at all: some scores sort, sample or take steps.
    """
    spec = getattr(target, "spec", None)
    refusal = InputError(
        f"{f'The score {spec!r}' if spec else 'This classifier'} has no gradient, so this heatmap cannot be made. "
        "Use the method occlusion."
    )
    try:
        values = target(inputs)
        found = torch.autograd.grad(values.sum(), list(wanted), allow_unused=True) if values.requires_grad else ()
    except DeltaEnergyError:
        raise
    except (RuntimeError, TypeError) as error:  # from torch: a step without a derivative or a graph
        raise refusal from error
    if all(one is None for one in found):
        raise refusal
    return list(found)


def value_path_map(by: ExplainedModel, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    with torch.no_grad():
        z, u = by.model.image_and_patch_features(pixels)
    z, u = z.detach().requires_grad_(), u.detach().requires_grad_()
    inputs = classify_for_score(by.classifier, z, u if by.patches else None, pixels)
    towards, own = gradients(target_of(torch.arange(len(pixels))), inputs, [z, u])
    return in_rows(value_path(u.detach(), torch.zeros_like(z) if towards is None else towards, own), by.model)


def rollout_map(by: ExplainedModel, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    tower = by.model.vision
    if tower is None:
        kind = "has a convolutional one" if isinstance(by.model, ConvolutionalModel) else "has one without"
        raise InputError(
            f"rollout needs a vision transformer with a class token as image encoder; {by.model.name!r} "
            f"{by.model.closed or kind}. {_instead(by.model, 'rollout')}"
        )
    start = pixels.detach().clone().requires_grad_()
    run = tower.run(start, by.model.vision_prompts, patches=by.patches, attention=True)
    inputs = classify_for_score(by.classifier, run.features, run.patches, pixels)
    found = gradients(target_of(torch.arange(len(pixels))), inputs, run.attention)
    if found[-1] is None:
        raise InputError(
            "rollout needs the class token, and this score uses only patches. Use value-path or occlusion."
        )
    attention = [weights.detach().float() for weights in run.attention]
    towards = [torch.zeros_like(a) if g is None else g.float() for a, g in zip(attention, found)]
    return in_rows(rollout(attention, towards)[:, 1 : 1 + tower.patch_count], by.model)


def grad_cam_map(by: ExplainedModel, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    model = by.model
    if not isinstance(model, ConvolutionalModel):
        raise InputError(
            f"grad-cam needs a convolutional image encoder, and {model.name!r} {model.closed or 'has another kind'}. "
            f"{_instead(model, 'grad-cam')}"
        )
    with torch.no_grad():
        feature_map = model.feature_map(pixels)
    feature_map = feature_map.detach().requires_grad_()
    patches = model.patches(feature_map) if by.patches else None
    inputs = classify_for_score(by.classifier, model.pooled(feature_map), patches, pixels)
    (towards,) = gradients(target_of(torch.arange(len(pixels))), inputs, [feature_map])
    assert towards is not None
    return grad_cam(feature_map.detach().float(), towards.float())


def occlusion_map(by: ExplainedModel, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    def values(covered: torch.Tensor, row: int) -> torch.Tensor:
        target = target_of(torch.full((len(covered),), row))
        with torch.inference_mode():
            return target(by.inputs(covered))

    return torch.stack([occlusion(lambda covered, i=i: values(covered, i), one) for i, one in enumerate(pixels)])  # type: ignore[misc]


METHODS: Mapping[str, MapMethod] = {
    method.name: method
    for method in (
        MapMethod("value-path", "how each patch would score as the whole image", value_path_map),
        MapMethod("rollout", "gradient × attention, block by block; transformers", rollout_map),
        MapMethod("grad-cam", "gradient × last map; convolutional encoders", grad_cam_map),
        MapMethod("occlusion", "what is lost when a part is covered; any encoder", occlusion_map),
    )
}


def check_method(name: str) -> None:
    if name not in (AUTO, *METHODS):
        raise InputError(f"Unknown `method` {name!r}.{did_you_mean(name, [AUTO, *METHODS])}")


def get_method(name: str, model: TowerModel, needs: frozenset[Need] = frozenset()) -> MapMethod:
    """The method of that name; `auto` chooses by the kind of encoder, as measured in the results.

    That is grad-cam for convolutional encoders and rollout for vision transformers with a class token. Occlusion is for
    all other encoders, for scores that run the encoder themselves (no gradients), and for transformers whose patches
    are used, which rollout does not trace.
    """
    check_method(name)
    if name != AUTO:
        return METHODS[name]
    if isinstance(model, ConvolutionalModel) and Need.PIXELS not in needs:
        return METHODS["grad-cam"]
    if model.vision is not None and not needs & {Need.PIXELS, Need.PATCHES}:
        return METHODS["rollout"]
    return METHODS["occlusion"]


def make_maps(method: MapMethod, by: ExplainedModel, pixels: torch.Tensor, target_of: TargetOf) -> torch.Tensor:
    """Maps (n, h, w) of a batch of pixels, a few images at a time."""
    parts = []
    for start in range(0, len(pixels), IMAGES_PER_STEP):
        part = pixels[start : start + IMAGES_PER_STEP]
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, because tensors made in inference mode cannot take part in a graph.
            own = part.clone() if part.is_inference() else part
            found = method.run(by, own, lambda rows, start=start: target_of(rows + start))  # type: ignore[misc]
        parts.append(found.detach().float().cpu())
    return torch.cat(parts)


def in_rows(patches: torch.Tensor, model: TowerModel) -> torch.Tensor:
    """(n, P) -> (n, h, w): images are square, and so is the grid of their patches."""
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise InputError(
            f"The {patches.shape[1]} patches of {model.name!r} are not a square grid. Use the method occlusion."
        )
    return patches.view(len(patches), side, side)


def _instead(model: TowerModel, refused: str) -> str:
    suits = {"rollout": model.vision is not None, "grad-cam": isinstance(model, ConvolutionalModel)}
    names = [name for name in METHODS if name != refused and suits.get(name, True)]
    return f"Use {', '.join(names[:-1])} or {names[-1]}."
