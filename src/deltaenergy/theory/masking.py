"""The masking experiment of the paper's Figure 1B: what is left of an image without half of its feature.

    P = z ⊙ t_ŷ,   ŷ the most similar class               P_j > 0 speaks for ŷ, P_j < 0 against it
    keeps:    z_j = 0 where P_j < 0                        ("ZS CLIP(+)")
    removes:  z_j = 0 where P_j > 0                        ("ZS CLIP(−)")
    s'_k = (z ⊙ m) · t_k,   E' = −lse(s'/τ)                not normalised again (ΔEnergy, NeurIPS 2025, eq. 8)

The paper says that a model goes on looking where it looked under the first mask, and looks elsewhere under the second.
Where a model looks is a map over the image of what speaks for z · w. Masking z is masking w: (z ⊙ m) · t = z · (m ⊙ t).
So any way to make such a map from w serves before and after; it is passed in as a function. `patch_maps` takes patch
features u_p, of a ViT's value path or of a CNN's last map: map_p = u_p · w.

A mask of any kind changes a map. Each has a control beside it, which masks as many entries, chosen at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.ebm import compare
from deltaenergy.core.specs import Positive, bounded
from deltaenergy.errors import InputError
from deltaenergy.evaluation.disagreement import average_ranks
from deltaenergy.scores.arrays import as_rows, as_tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier, Outputs

BEFORE, KEEPS, REMOVES = "before", "keeps", "removes"
KEEPS_CONTROL, REMOVES_CONTROL = "keeps, at random", "removes, at random"
# Similarities that differ by more than rounding from z · t come from something else.
_ROUNDING = 1e-3
# Directions w (N, D) -> maps (N, h, w) of what speaks for z · w.
MapFunction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class View:
    """What a classifier makes of N images through one mask.

    Attributes:
        mask: 1 where the feature is left, 0 where it is masked (N, D).
        named: position of the most similar class (N,).
        top: the similarity of that class (N,).
        similarity: that of the class which was most similar before (N,).
        energy: E' (N,).
        for_class: w = m ⊙ t of the class named before (N, D).
        for_named: w = m ⊙ t of the class named through the mask (N, D).
    """

    mask: torch.Tensor
    named: torch.Tensor
    top: torch.Tensor
    similarity: torch.Tensor
    energy: torch.Tensor
    for_class: torch.Tensor
    for_named: torch.Tensor


def masks(features: Any, texts: Any) -> dict[str, torch.Tensor]:
    """`keeps` and `removes` of unit features (N, D) and the text of each image's most similar class (N, D).

    An entry with P_j = 0 speaks neither for nor against, and is masked by neither.
    """
    z, t = as_rows(features, "features"), as_rows(texts, "texts")
    if z.shape != t.shape:
        raise InputError(f"texts must have the shape of features, {tuple(z.shape)}, got {tuple(t.shape)}.")
    product = z * t.to(z)
    return {KEEPS: (product >= 0).to(z), REMOVES: (product <= 0).to(z)}


def shuffled(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each row's entries in random order: as many masked, but others."""
    order = torch.rand(mask.shape, generator=generator).argsort(dim=1)
    return mask.gather(1, order.to(mask.device))


@bounded
def masked_views(
    features: Any, texts: Any, tau: Positive = 0.01, *, controls: torch.Generator | None = None
) -> dict[str, View]:
    """The images before, and through both masks; with `controls`, a source of chance, through the controls too.

    Args:
        features: unit features (N, D).
        texts: unit text features (K, D), or of each image (N, K, D).
        tau: temperature of the energies.
        controls: where the random masks come from.
    """
    z, t = as_rows(features, "features"), as_tensor(texts, "texts")
    if t.ndim not in (2, 3) or t.shape[-1] != z.shape[1]:
        raise InputError(f"texts must be (classes, {z.shape[1]}), got {tuple(t.shape)}.")
    t = t.to(z)
    named = compare(z, t).argmax(dim=1)
    chosen = masks(z, _texts_of(t, named))
    if controls is not None:
        chosen[KEEPS_CONTROL] = shuffled(chosen[KEEPS], controls)
        chosen[REMOVES_CONTROL] = shuffled(chosen[REMOVES], controls)
    return {name: _view(z, t, mask, named, tau) for name, mask in {BEFORE: torch.ones_like(z), **chosen}.items()}


def _view(z: torch.Tensor, t: torch.Tensor, mask: torch.Tensor, before: torch.Tensor, tau: float) -> View:
    similarities = compare(z * mask, t)
    top, named = similarities.max(dim=1)
    return View(
        mask=mask,
        named=named,
        top=top,
        similarity=similarities.gather(1, before[:, None])[:, 0],
        energy=-torch.logsumexp(similarities.double() / tau, dim=1),
        for_class=mask * _texts_of(t, before),
        for_named=mask * _texts_of(t, named),
    )


def _texts_of(texts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The text of one class for each image (N, D)."""
    return texts[positions] if texts.ndim == 2 else texts[torch.arange(len(positions)), positions]


def check_masks(classifier: Classifier, outputs: Outputs) -> None:
    """Raise `InputError` unless similarities are z · t: of others, P_j says nothing."""
    found = compare(outputs.features, outputs.texts)
    if found.shape != outputs.similarities.shape or not torch.allclose(
        found.float(), outputs.similarities.float(), rtol=0, atol=_ROUNDING
    ):
        raise InputError(
            f"Masking looks at P = z ⊙ t, and the similarities of a classifier by {classifier.method.name} are not "
            "z · t. Take a zero-shot classifier, or one tuned by a method that learns texts, such as coop."
        )


def patch_maps(patches: torch.Tensor) -> MapFunction:
    """Maps by unit patch features (N, P, D): map_p = u_p · w, in rows of √P."""
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise InputError(f"patches must fill a square to be shown as a map, got {patches.shape[1]} of them.")

    def maps(directions: torch.Tensor) -> torch.Tensor:
        return torch.einsum("npd,nd->np", patches, directions.to(patches)).reshape(-1, side, side)

    return maps


@dataclass(frozen=True)
class Agreement:
    """How much of where a model looked is left, of N images.

    Attributes:
        correlation: Spearman's, of the two maps: 1 for the same order of places, 0 for no relation (N,).
        overlap: share of the quarter of the places that stood out before which still does; chance is a quarter (N,).
        peak_stays: whether the place that stood out most is the same (N,).
    """

    correlation: npt.NDArray[np.float64]
    overlap: npt.NDArray[np.float64]
    peak_stays: npt.NDArray[np.bool_]


def agreement(before: Any, after: Any) -> Agreement:
    """`Agreement` of maps (N, h, w)."""
    first, second = (np.asarray(as_tensor(maps, "maps").detach().cpu().double().flatten(1)) for maps in (before, after))
    if first.shape != second.shape or not first.shape[1]:
        raise InputError(f"maps must be of one shape, got {first.shape} and {second.shape}.")
    ranks = [np.stack([average_ranks(row) for row in maps]) if len(maps) else maps for maps in (first, second)]
    centred = [one - one.mean(axis=1, keepdims=True) for one in ranks]
    norms = np.prod([np.sqrt((one**2).sum(axis=1)) for one in centred], axis=0)
    together = (centred[0] * centred[1]).sum(axis=1)
    # A map that is the same everywhere has no order that could be kept.
    correlation = np.divide(together, norms, out=np.zeros_like(together), where=norms > 0)
    count = math.ceil(first.shape[1] / 4)
    tops = [np.argsort(-maps, axis=1, kind="stable")[:, :count] for maps in (first, second)]
    shared = [len(np.intersect1d(a, b)) / count for a, b in zip(*tops)]
    peaks = tops[0][:, 0] == tops[1][:, 0]
    return Agreement(correlation, np.array(shared, dtype=np.float64), peaks)


def agreements(views: Mapping[str, View], maps: MapFunction, *, of_named: bool = False) -> dict[str, Agreement]:
    """How each mask's map agrees with the one before; with `of_named`, the map of the class that is then named."""
    before = maps(views[BEFORE].for_class)
    return {
        name: agreement(before, maps(view.for_named if of_named else view.for_class))
        for name, view in views.items()
        if name != BEFORE
    }
