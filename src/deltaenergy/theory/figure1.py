"""The paper's Figure 1 on any two folders: known and unknown images, ΔEnergy taken apart, and what masking does.

    figure = paper_figure(classifier, "known/", "unknown/")
    figure.claims()                       # what of the paper's claims holds here, with the figures behind it

Figure 1A is the ΔEnergy of known and unknown images. Figure 1B shows where a model looks before and after masking
(`masking`); the paper shows a few pictures, and here every image is measured: how much of the map before is left in the
map after, by Spearman's correlation, the overlap of the quarters that stand out, and whether the peak stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.base import Classifier, Inputs, check_classifier
from deltaenergy.core.needs import Need
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import Unreadable
from deltaenergy.errors import InputError
from deltaenergy.evaluation.provenance import provenance_of
from deltaenergy.explanation.energy import TAU, C, EnergyParts, energy_parts
from deltaenergy.explanation.methods import AUTO, MapMethod, Subject, get_method
from deltaenergy.models.base import TowerModel, require_towers
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.source import load_images
from deltaenergy.store.store import StoredImage
from deltaenergy.theory.directions import direction_maps
from deltaenergy.theory.masking import (
    BEFORE,
    KEEPS,
    REMOVES,
    Agreement,
    View,
    agreements,
    check_masks,
    masked_views,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.encoding import EncodedBatch

KNOWN, UNKNOWN = "known", "unknown"
PANELS = 4
_SHOWN = (BEFORE, KEEPS, REMOVES)


@dataclass(frozen=True)
class Seen:
    """What a classifier made of N images through one mask: class positions, similarities, energies (N,).

    `similarity` is that of the class which was most similar before, `top` that of the class which is now, `masked` the
    share of the feature's entries that are masked.
    """

    named: npt.NDArray[np.int64]
    top: npt.NDArray[np.float64]
    similarity: npt.NDArray[np.float64]
    energy: npt.NDArray[np.float64]
    masked: npt.NDArray[np.float64]

    @classmethod
    def join(cls, views: Sequence[View]) -> Seen:
        """The views of one mask over all batches."""
        arrays = {
            name: np.concatenate([getattr(view, name).double().cpu().numpy() for view in views])
            for name in ("named", "top", "similarity", "energy")
        }
        masked = np.concatenate([1 - view.mask.double().mean(dim=1).cpu().numpy() for view in views])
        return cls(**{**arrays, "named": arrays["named"].astype(np.int64), "masked": masked})


@dataclass(frozen=True)
class Panel:
    """One image of the figure: what the model saw, its maps before and through both masks, and its ΔEnergy."""

    row: int
    picture: Image.Image
    maps: Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class MaskedSet:
    """One folder. Row i of everything belongs to `names[i]`.

    Attributes:
        names: what the images are called.
        parts: ΔEnergy of each, taken apart.
        seen: by mask, and `before`.
        same_class: by mask, how the map of the class named before agrees with that map before.
        then_named: by mask, how the map of the class named through the mask agrees with it.
        panels: some images, drawn at random.
        unreadable: images that were skipped.
    """

    names: tuple[str, ...]
    parts: tuple[EnergyParts, ...]
    seen: Mapping[str, Seen]
    same_class: Mapping[str, Agreement]
    then_named: Mapping[str, Agreement]
    panels: tuple[Panel, ...]
    unreadable: list[Unreadable] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def delta(self) -> npt.NDArray[np.float64]:
        """ΔEnergy of each image."""
        return np.array([one.delta for one in self.parts], dtype=np.float64)


@dataclass(frozen=True)
class PaperFigure:
    """Both folders, and how they were looked at. `statistics` and `page` read it."""

    known: MaskedSet
    unknown: MaskedSet
    classes: tuple[str, ...]
    method: str
    tau: float
    c: int
    seed: int
    provenance: dict[str, Any]

    @property
    def sets(self) -> dict[str, MaskedSet]:
        """Both by name."""
        return {KNOWN: self.known, UNKNOWN: self.unknown}

    @property
    def unreadable(self) -> list[Unreadable]:
        """Images that were skipped."""
        return [*self.known.unreadable, *self.unknown.unreadable]


def usual_map(model: TowerModel) -> str:
    """Grad-CAM for a convolutional tower, the value path for others: both run the tower once or twice per image."""
    return "grad-cam" if isinstance(model, ConvolutionalModel) else "value-path"


def paper_figure(
    classifier: Classifier,
    known: Any,
    unknown: Any,
    *,
    method: str = AUTO,
    tau: float = TAU,
    c: int = C,
    panels: int = PANELS,
    seed: int = 0,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> PaperFigure:
    """Figure 1A and 1B for images of the classes and images of none of them.

    Args:
        classifier: whose similarities are z · t: zero-shot, or tuned by a method that learns texts.
        known: images of its classes.
        unknown: images of none of them.
        method: that makes the maps: `value-path`, `grad-cam`, `rollout`, `occlusion`; `auto` is `usual_map`.
        tau: temperature of the energies.
        c: how many classes ΔEnergy resets.
        panels: how many images of each folder are shown, drawn at random.
        seed: of that draw and of the random masks.
        batch_size: images per step of the image tower.
        progress: told how many images of both folders are done.
    """
    check_classifier(classifier, "paper_figure")
    if panels < 0:
        raise InputError(f"panels must be at least 0, got {panels!r}.")
    model = require_towers(classifier.model, "paper_figure")
    maps = get_method(usual_map(model) if method == AUTO else method, model)
    given = {KNOWN: load_images(known), UNKNOWN: load_images(unknown)}
    if any(isinstance(item.source, StoredImage) for items in given.values() for item in items):
        raise _no_pixels()
    total, done = sum(map(len, given.values())), 0
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, items in given.items():
        shown = np.random.default_rng(seed).choice(len(items), size=min(panels, len(items)), replace=False)
        collected = _Collected({items[i].id for i in shown.tolist()})
        subject = Subject(classifier, model, patches=Need.PATCHES in classifier.needs_to_predict)
        patches = subject.patches or maps.name == "value-path"
        for batch in model.stream(items, patches=patches, batch_size=batch_size, progress=lambda *_: None):
            collected.add(batch, subject, maps, tau, c, generator)
            done += len(batch.items) + len(batch.unreadable)
            if progress is not None:
                progress(done, total)
        found[name] = collected.whole(name)
    made = provenance_of(classifier, method=maps.name, tau=tau, c=c, seed=seed)
    return PaperFigure(found[KNOWN], found[UNKNOWN], tuple(classifier.classes), maps.name, tau, c, seed, made)


class _Collected:
    """What is found batch by batch; of the images in `shown` the pictures and maps are held, too."""

    def __init__(self, shown: set[str]) -> None:
        self.shown = shown
        self.names: list[str] = []
        self.parts: list[EnergyParts] = []
        self.views: dict[str, list[View]] = {}
        self.agreements: tuple[dict[str, list[Agreement]], dict[str, list[Agreement]]] = ({}, {})
        self.panels: list[Panel] = []
        self.unreadable: list[Unreadable] = []

    def add(
        self,
        batch: EncodedBatch,
        subject: Subject,
        method: MapMethod,
        tau: float,
        c: int,
        generator: torch.Generator,
    ) -> None:
        """Mask the images of one batch."""
        self.unreadable += batch.unreadable
        if not batch.items:
            return
        pixels = batch.pixels
        if pixels is None:
            raise _no_pixels()
        classifier = subject.classifier
        with torch.inference_mode():
            outputs = classifier(Inputs(batch.features.float(), batch.patches, pixels=pixels))
            check_masks(classifier, outputs)
            views = masked_views(outputs.features.float(), outputs.texts.float(), tau, controls=generator)
        maps = direction_maps(method, subject, batch.features, pixels, batch.patches)
        for kept, of_named in zip(self.agreements, (False, True)):
            for name, one in agreements(views, maps, of_named=of_named).items():
                kept.setdefault(name, []).append(one)
        chosen = [i for i, item in enumerate(batch.items) if item.id in self.shown]
        if chosen:
            drawn = {name: maps(views[name].for_class).numpy() for name in _SHOWN}
            pictures = pixels.float().cpu().numpy()
            self.panels += [
                Panel(
                    len(self.names) + i,
                    subject.model.preprocessing.picture(pictures[i]),
                    {name: drawn[name][i] for name in _SHOWN},
                )
                for i in chosen
            ]
        self.names += [item.id for item in batch.items]
        self.parts += energy_parts(outputs.similarities.clone(), classifier.classes, tau, c)
        for name, view in views.items():
            self.views.setdefault(name, []).append(view)

    def whole(self, name: str) -> MaskedSet:
        """All batches as one."""
        if not self.names:
            raise InputError(f"The paper's figure needs at least one readable {name} image, and got none.")
        same, then = ({mask: _joined(parts) for mask, parts in kept.items()} for kept in self.agreements)
        seen = {mask: Seen.join(views) for mask, views in self.views.items()}
        return MaskedSet(
            tuple(self.names), tuple(self.parts), seen, same, then, tuple(self.panels), list(self.unreadable)
        )


def _no_pixels() -> InputError:
    return InputError("The paper's figure makes maps over pixels: give it the images, not a feature store.")


def _joined(parts: Sequence[Agreement]) -> Agreement:
    return Agreement(
        *(np.concatenate([getattr(one, name) for one in parts]) for name in ("correlation", "overlap", "peak_stays"))
    )
