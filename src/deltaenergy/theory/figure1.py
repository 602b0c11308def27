"""The paper's Figure 1, measured on known and unknown images: their ΔEnergy (1A), and what masking does (1B).

    P = z ⊙ t_ŷ,   ŷ the most similar class                P_j > 0 supports ŷ, P_j < 0 counts against it
    MASK_AGAINST:  z_j = 0 where P_j < 0                    ("ZS CLIP(+)")
    MASK_FOR:      z_j = 0 where P_j > 0                    ("ZS CLIP(−)")
    s'_k = (z ⊙ m) · t_k,   E' = −lse(s'/τ)                 not normalised again (ΔEnergy, NeurIPS 2025, eq. 8)

The paper shows a few images and claims that attention stays under the first mask and moves under the second. Here every
image is measured. Attention is a heatmap of what supports z · w. Masking z is masking w, (z ⊙ m) · t = z · (m ⊙ t), so
any heatmap method for w works before and after. Both heatmaps of class ŷ are compared by Spearman's correlation. Any
mask changes a heatmap, so each has a control that masks as many entries at random: only differences to the control
count for P_j.

Attention *stays* if the interval of the mean correlation is above `STAYS`, and *moves* if it is below: at 0.7, the
heatmap before explains half of the variance of the ranks. Means have bootstrap percentile intervals over images (1,000
resamples), shares Wilson's; differences between masks are taken on the same images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, check_classifier
from deltaenergy.classifiers.ebm import compare
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import stage
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError
from deltaenergy.evaluation.disagreement import average_ranks
from deltaenergy.evaluation.results import provenance_of
from deltaenergy.explanation.energy import TAU, C, EnergyParts, energy_parts
from deltaenergy.explanation.maps import grad_cam, occlusion, value_path
from deltaenergy.explanation.methods import (
    AUTO,
    ExplainedModel,
    MapMethod,
    Target,
    classify_for_score,
    get_method,
    in_rows,
    make_maps,
)
from deltaenergy.models.base import require_towers
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.source import require_images
from deltaenergy.stats.metrics import Estimate, RankedScores, paired_mean_difference, proportion_estimate

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

KNOWN, UNKNOWN = "known", "unknown"
BEFORE, MASK_AGAINST, MASK_FOR = "before", "P_j < 0 masked", "P_j > 0 masked"
AGAINST_CONTROL, FOR_CONTROL = "as many as P_j < 0, at random", "as many as P_j > 0, at random"
MASKS = (MASK_AGAINST, AGAINST_CONTROL, MASK_FOR, FOR_CONTROL)
# Differences of two masks' correlations, by name.
_DIFFERENCES = {
    "P_j < 0 − P_j > 0": (MASK_FOR, MASK_AGAINST),
    "P_j < 0 − at random": (AGAINST_CONTROL, MASK_AGAINST),
    "P_j > 0 − at random": (FOR_CONTROL, MASK_FOR),
}
STAYS = 0.7
PANELS = 4
# Of the images that are shown and of the random masks.
SEED = 0
_SHOWN = (BEFORE, MASK_AGAINST, MASK_FOR)
# Similarities that differ by more than rounding from z · t come from something else.
_ROUNDING = 1e-3
# Directions w (N, D) -> heatmaps (N, h, w) of what supports z · w.
MapFunction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MaskedResult:
    """The results of a classifier for N images with one mask.

    Attributes:
        named: position of the closest class (N,).
        top: the similarity of that class (N,).
        similarity: of the class that was closest before (N,).
        energy: E' (N,).
        masked: share of the feature's entries that are masked (N,).
        correlation: Spearman's, of the heatmaps before and after; 0 if one of them is the same everywhere (N,).
    """

    named: npt.NDArray[np.int64]
    top: Floats
    similarity: Floats
    energy: Floats
    masked: Floats
    correlation: Floats


@dataclass(frozen=True)
class Panel:
    """One image of the figure as the model saw it, and its heatmaps before and with both masks."""

    row: int
    picture: Image.Image
    maps: Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class MaskedSet:
    """One set of images. Row i of everything belongs to `names[i]`; `results` are by mask; `panels` show some."""

    names: tuple[str, ...]
    parts: tuple[EnergyParts, ...]
    results: Mapping[str, MaskedResult]
    panels: tuple[Panel, ...]
    unreadable: list[Unreadable]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def delta(self) -> Floats:
        """ΔEnergy of each image."""
        return np.array([one.delta for one in self.parts], dtype=np.float64)


@dataclass(frozen=True)
class Figure1:
    """Known and unknown images, and the settings."""

    sets: Mapping[str, MaskedSet]
    classes: tuple[str, ...]
    method: str
    provenance: dict[str, Any]


@dataclass(frozen=True)
class MaskStatistics:
    """The effect of one mask on a set of images.

    Attributes:
        masked: mean share of the feature's entries that it masks.
        correlation: of heatmaps before and after.
        class_stays: share of images that keep their class.
        similarity: mean change of that class's similarity.
        energy: mean change of the energy.
    """

    masked: float
    correlation: Estimate
    class_stays: Estimate
    similarity: Estimate
    energy: Estimate


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, whether it holds on these images, and the numbers in words."""

    claim: str
    holds: bool
    found: str


def figure1(
    classifier: Classifier,
    known: Any,
    unknown: Any,
    *,
    method: str = AUTO,
    panels: int = PANELS,
    batch_size: int = 32,
) -> Figure1:
    """Figure 1A and 1B for images of the classes and images of none of them.

    Args:
        classifier: with similarities z · t: zero-shot, or tuned by a method that learns texts.
        known: images of its classes.
        unknown: images of none of them.
        method: of the heatmaps, as in `explain`; `auto` is Grad-CAM for a convolutional encoder and the value path for
            others, which both run the encoder once or twice per image.
        panels: how many images of each set are shown, drawn at random.
        batch_size: images per step of the image encoder.
    """
    check_classifier(classifier, "figure1")
    model = require_towers(classifier.model, "figure1")
    usual = "grad-cam" if isinstance(model, ConvolutionalModel) else "value-path"
    maps = get_method(usual if method == AUTO else method, model)
    by = ExplainedModel(classifier, model, patches=Need.PATCHES in classifier.needs_to_predict)
    given = {name: list(require_images(one, "Figure 1")) for name, one in ((KNOWN, known), (UNKNOWN, unknown))}
    generator = torch.Generator().manual_seed(SEED)
    sets = {}
    for name, items in given.items():
        drawn = np.random.default_rng(SEED).choice(len(items), size=min(panels, len(items)), replace=False)
        shown = {items[i].id for i in drawn.tolist()}
        parts: list[MaskedSet] = []
        patches = by.patches or maps.name == "value-path"
        with stage(f"Masking {name} images") as progress:
            for batch in model.stream(items, patches=patches, batch_size=batch_size, progress=progress):
                parts.append(_masked_batch(batch, by, maps, generator, shown, start=sum(map(len, parts))))
        if not any(map(len, parts)):
            raise InputError(f"Figure 1 needs at least one readable {name} image.")
        sets[name] = _joined(parts)
    made = provenance_of(classifier, method=maps.name, tau=TAU, c=C, seed=SEED)
    return Figure1(sets, tuple(classifier.classes), maps.name, made)


def _masked_batch(
    batch: EncodedBatch,
    by: ExplainedModel,
    method: MapMethod,
    generator: torch.Generator,
    shown: set[str],
    *,
    start: int,
) -> MaskedSet:
    if not batch.items:
        return MaskedSet((), (), {}, (), batch.unreadable)
    assert batch.pixels is not None
    with torch.inference_mode():
        outputs = by.classifier(Inputs(batch.features.float(), batch.patches, pixels=batch.pixels))
        check_masks(by.classifier, outputs)
        z, t = outputs.features.float(), outputs.texts.float()
        named = compare(z, t).argmax(dim=1)
        masks = make_masks(z, texts_of(t, named), generator)
    maps = direction_maps(method, by, batch)
    heatmaps = {name: maps(mask * texts_of(t, named)) for name, mask in masks.items()}
    results = {
        name: masked_result(z, t, mask, named, TAU, correlations(heatmaps[BEFORE], heatmaps[name]))
        for name, mask in masks.items()
    }
    panels = tuple(
        Panel(
            start + i,
            by.model.preprocessing.picture(batch.pixels[i].float().cpu().numpy()),
            {name: heatmaps[name][i].numpy() for name in _SHOWN},
        )
        for i, item in enumerate(batch.items)
        if item.id in shown
    )
    parts = energy_parts(outputs.similarities.clone(), by.classifier.classes)
    return MaskedSet(tuple(item.id for item in batch.items), tuple(parts), results, panels, batch.unreadable)


def _joined(parts: Sequence[MaskedSet]) -> MaskedSet:
    """All batches as one."""
    some = [part.results for part in parts if len(part)]
    results = {
        mask: MaskedResult(
            *(np.concatenate([getattr(one[mask], field.name) for one in some]) for field in fields(MaskedResult))
        )
        for mask in some[0]
    }
    names, energies, panels, unreadable = (
        [one for part in parts for one in getattr(part, name)] for name in ("names", "parts", "panels", "unreadable")
    )
    return MaskedSet(tuple(names), tuple(energies), results, tuple(panels), unreadable)


def make_masks(features: torch.Tensor, texts: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The masks of unit features (N, D) and the text of each image's class (N, D): 0 where an entry is masked.

    An entry with P_j = 0 supports nothing and counts against nothing, and neither mask removes it. Each row of a
    control has the entries of its mask in random order.
    """
    product = features * texts
    found = {BEFORE: torch.ones_like(features)}
    found |= {MASK_AGAINST: (product >= 0).to(features), MASK_FOR: (product <= 0).to(features)}
    for control, mask in ((AGAINST_CONTROL, found[MASK_AGAINST]), (FOR_CONTROL, found[MASK_FOR])):
        order = torch.rand(mask.shape, generator=generator).argsort(dim=1)
        found[control] = mask.gather(1, order.to(mask.device))
    return found


def masked_result(
    features: torch.Tensor,
    texts: torch.Tensor,
    mask: torch.Tensor,
    named: torch.Tensor,
    tau: float,
    correlation: Floats,
) -> MaskedResult:
    """The results with a mask, for features (N, D) of predicted classes `named` (N,)."""
    similarities = compare(features * mask, texts)
    top, now = similarities.max(dim=1)

    def array(values: torch.Tensor) -> Floats:
        return values.double().cpu().numpy()

    return MaskedResult(
        named=now.cpu().numpy(),
        top=array(top),
        similarity=array(similarities.gather(1, named[:, None])[:, 0]),
        energy=array(-torch.logsumexp(similarities.double() / tau, dim=1)),
        masked=1 - array(mask.double().mean(dim=1)),
        correlation=correlation,
    )


def texts_of(texts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The text of one class for each image (N, D), of texts shared by all (K, D) or of each image (N, K, D)."""
    return texts[positions] if texts.ndim == 2 else texts[torch.arange(len(positions)), positions]


def check_masks(classifier: Classifier, outputs: Outputs) -> None:
    """Raise `InputError` unless similarities are z · t: otherwise P_j means nothing."""
    found = compare(outputs.features, outputs.texts)
    if found.shape != outputs.similarities.shape or not torch.allclose(
        found.float(), outputs.similarities.float(), rtol=0, atol=_ROUNDING
    ):
        raise InputError(
            f"Masking needs P = z ⊙ t, and the similarities of a {classifier.method.name} classifier are not z · t. "
            "Use a zero-shot classifier, or tune with a method that learns texts, such as coop."
        )


def correlations(before: torch.Tensor, after: torch.Tensor) -> Floats:
    """Spearman's correlation of heatmaps (N, h, w), image by image; 0 where one of them is the same everywhere."""
    centred = []
    for maps in (before, after):
        ranks = np.stack([average_ranks(row) for row in maps.double().flatten(1).cpu().numpy()])
        centred.append(ranks - ranks.mean(axis=1, keepdims=True))
    norms = np.prod([np.sqrt((one**2).sum(axis=1)) for one in centred], axis=0)
    together = (centred[0] * centred[1]).sum(axis=1)
    return np.asarray(np.divide(together, norms, out=np.zeros_like(together), where=norms > 0))


def direction_maps(method: MapMethod, by: ExplainedModel, batch: EncodedBatch) -> MapFunction:
    """Heatmaps of y = z · w for many w, with one run of the encoder if the method allows it.

    z are the features that the classifier compares with its texts. Occlusion is linear in y: its heatmap is the mean
    feature lost at each cell, times w. The value path and Grad-CAM need one backward step for each w, from the features
    or from the last map. Rollout runs the encoder again for each.
    """
    pixels, model, patches = batch.pixels, by.model, batch.patches
    assert pixels is not None
    if method.name == "occlusion":
        lost = torch.stack([occlusion(lambda covered: _compared(by.inputs(covered)).float(), one) for one in pixels])
        return lambda w: torch.einsum("nhwd,nd->nhw", lost, w.to(lost)).float()
    last: torch.Tensor | None = None
    if method.name == "grad-cam" and isinstance(model, ConvolutionalModel):
        with torch.inference_mode():
            last = model.feature_map(pixels)
    elif method.name != "value-path" or patches is None:
        # A method that cannot use this encoder raises its own error.
        return lambda w: make_maps(method, by, pixels, lambda rows: dot_with(w[rows]))
    with torch.inference_mode(False), torch.enable_grad():
        # Copies, because tensors made in inference mode cannot take part in a graph.
        leaf = (batch.features.float() if last is None else last).detach().clone().requires_grad_()
        features = leaf if last is None else model.pooled(leaf)  # type: ignore[attr-defined]
        own = None if patches is None else patches.clone()
        inputs = classify_for_score(by.classifier, features, own if by.patches else None, pixels.clone())

    def maps(w: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            (towards,) = torch.autograd.grad(dot_with(w)(inputs).sum(), [leaf], retain_graph=True)
            if last is not None:
                return grad_cam(leaf.detach(), towards).float().cpu()
            assert own is not None
            return in_rows(value_path(own.float(), towards), model).float().cpu()

    return maps


def dot_with(w: torch.Tensor) -> Target:
    """The target z · w, with w of each image (N, D)."""
    return lambda inputs: (_compared(inputs) * w.clone().to(_compared(inputs))).sum(dim=1)


def _compared(inputs: Any) -> torch.Tensor:
    features: torch.Tensor = inputs.outputs.features
    return features


def mask_statistics(one: MaskedSet) -> dict[str, MaskStatistics]:
    """By mask."""
    before, found = one.results[BEFORE], {}
    for mask in MASKS:
        result = one.results[mask]
        found[mask] = MaskStatistics(
            masked=float(result.masked.mean()),
            correlation=paired_mean_difference(np.zeros(len(one)), result.correlation),
            # Wilson's interval: the bootstrap has none if all images agree.
            class_stays=proportion_estimate(int((result.named == before.named).sum()), len(one)),
            similarity=paired_mean_difference(before.similarity, result.similarity),
            energy=paired_mean_difference(before.energy, result.energy),
        )
    return found


def correlation_differences(one: MaskedSet) -> dict[str, Estimate]:
    """Between masks, on the same images."""
    return {
        name: paired_mean_difference(one.results[first].correlation, one.results[second].correlation)
        for name, (first, second) in _DIFFERENCES.items()
    }


def detection(figure: Figure1) -> Estimate:
    """AUROC of ΔEnergy, known against unknown."""
    return RankedScores(figure.sets[KNOWN].delta, figure.sets[UNKNOWN].delta).estimates()["auroc"]


def claims(figure: Figure1) -> list[Claim]:
    """The paper's claims about its Figure 1, checked on these images; those about attention on the known images."""
    auroc, statistics = detection(figure), mask_statistics(figure.sets[KNOWN])
    means = [one.delta.mean() for one in figure.sets.values()]
    gap, above_chance, below_chance = correlation_differences(figure.sets[KNOWN]).values()
    kept, removed = statistics[MASK_AGAINST], statistics[MASK_FOR]
    at_random = [_number(statistics[control].correlation) for control in (AGAINST_CONTROL, FOR_CONTROL)]
    return [
        Claim(
            "ΔEnergy is larger for known than for unknown images",
            auroc.low > 0.5,
            f"AUROC {auroc.percent()}; mean ΔE {means[0]:.3g} against {means[1]:.3g}.",
        ),
        Claim(
            "Attention stays where P_j < 0 is masked",
            kept.correlation.low > STAYS,
            f"The heatmaps keep a correlation of {_number(kept.correlation)}; with as many entries masked at random "
            f"{at_random[0]}, a difference of {_number(above_chance)}.",
        ),
        Claim(
            "Attention moves where P_j > 0 is masked",
            removed.correlation.high < STAYS,
            f"The heatmaps keep a correlation of {_number(removed.correlation)}; with as many entries masked at random "
            f"{at_random[1]}, a difference of {_number(below_chance)}.",
        ),
        Claim(
            "It stays more under the first mask than under the second",
            gap.low > 0,
            f"The correlations differ by {_number(gap)}.",
        ),
        Claim(
            "Masking P_j > 0 removes the class",
            removed.class_stays.high < 0.5,
            f"{removed.class_stays.percent()} keep their class, with P_j < 0 masked {kept.class_stays.percent()}.",
        ),
    ]


def figure_record(figure: Figure1) -> dict[str, Any]:
    """Claims and statistics as JSON values."""
    return {
        "claims": [vars(claim) for claim in claims(figure)],
        "auroc": detection(figure)._asdict(),
        "method": figure.method,
        "sets": {
            name: {
                "images": len(one),
                "masks": {
                    mask: {
                        key: value._asdict() if isinstance(value, Estimate) else value
                        for key, value in vars(found).items()
                    }
                    for mask, found in mask_statistics(one).items()
                },
                "differences": {key: value._asdict() for key, value in correlation_differences(one).items()},
            }
            for name, one in figure.sets.items()
        },
    }


def _number(value: Estimate) -> str:
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})".replace("-", "−")
