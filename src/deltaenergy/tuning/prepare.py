"""From a user's labelled images to training and validation data: the sample, its views, held-out features."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from deltaenergy.classifiers.methods import Method, TrainViews
from deltaenergy.core.classes import class_indices
from deltaenergy.core.needs import OF_IMAGES, Need
from deltaenergy.core.progress import Progress, stage
from deltaenergy.core.text import counted
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.files import hash_strings, read_tensors, remove_bound, write_tensors
from deltaenergy.models.base import Model, TowerModel, require_towers
from deltaenergy.models.encoding import EncodedImages, collect, stream_batches
from deltaenergy.source import Source, as_source, check_has, has_pixels, labelled_images
from deltaenergy.training.checkpoints import RECORD, saving
from deltaenergy.tuning.fewshot import FewShot, sample_few_shots
from deltaenergy.tuning.views import CachedViews, Domains, LiveViews, Tensors, Validation, encode_views

DEFAULT_VIEWS = 8
# Files of the views during a run, random views and test views.
VIEWS_FILE = "views.safetensors"
TEST_VIEWS_FILE = "views-test.safetensors"
# Where an unfinished run keeps its views and checkpoints, inside the result folder. The name is ours; only files in it
# are ever removed.
RUN_FOLDER = ".deltaenergy-tuning"
_SEARCHED, _METHOD = "search-*", "method-"


@dataclass(frozen=True)
class TrainSet:
    """A few-shot sample with its views: encode once, tune by any number of methods."""

    sample: FewShot
    images: TrainViews
    views: int | str
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def identity(self) -> str:
        """Identity of the images with class and domain, and (if encoded) of their features."""
        seen = hash_features(self.images.features) if isinstance(self.images, CachedViews) else ""
        names, numbers = self.images.domain_names, self.images.domains.tolist()
        domains = [names[number] for number in numbers] if len(names) > 1 else []
        return hash_strings([self.sample.hash, seen, *domains])

    def take(self, rows: Sequence[int], classes: Sequence[int]) -> TrainSet:
        """Some of the images, for some of the classes, as a separate training set; nothing is encoded."""
        position = {k: new for new, k in enumerate(classes)}
        sample = replace(
            self.sample,
            classes=tuple(self.sample.classes[k] for k in classes),
            items=[self.sample.items[row] for row in rows],
            labels=[position[self.sample.labels[row]] for row in rows],
        )
        if not isinstance(self.images, CachedViews):
            raise InputError("views='live' are encoded on demand: use cached views.")
        return replace(self, sample=sample, images=self.images.take(rows, sample.labels))

    def without_trained(self, items: Sequence[ImageItem]) -> list[ImageItem]:
        """The `items` that were not trained on."""
        trained = {name for item in self.sample.items if (name := _identity(item)) is not None}
        return [item for item in items if _identity(item) not in trained]

    def warn_of_overlap(self, validation: Validation, what: str) -> None:
        """Warn if images that should be new were trained on."""
        both = len(validation.images) - len(self.without_trained(validation.images))
        if both:
            warnings.warn(
                f"{both} of the {len(validation.images)} {what} images are also trained on, so results on them are too "
                "good. Pass images that are not in the training folder.",
                stacklevel=4,
            )


def prepare_training(
    model: Model,
    classes: Sequence[str],
    images: Any,
    shots: int = 16,
    seed: int = 1,
    views: int | str = DEFAULT_VIEWS,
    *,
    domains: bool = False,
    needs: frozenset[Need] = frozenset(),
    cache: Path | None = None,
    progress: Progress | None = None,
    who: str = "tune",
) -> TrainSet:
    """Draw the few-shot sample (unless `images` is one) and encode its views, keeping them in `cache` if given.

    Images with stored features (`LabelledFeatures`, a feature store) have only the test view, and `needs` must not ask
    for more; errors name `who`. An unreadable image is replaced by another of its class, with a warning.
    """
    if isinstance(views, bool) or not (views in ("live", "test") or isinstance(views, int)):
        raise InputError(f"views must be a whole number, 'test' or 'live', got {views!r}.")
    pool = None if isinstance(images, FewShot) else labelled_images(images, domains, classes)
    sample = images if isinstance(images, FewShot) else sample_few_shots(pool or [], classes, shots, seed)
    # A broken link next to the class folders has no class, but is reported like any other.
    skipped = {
        item.id: Unreadable(item.id, item.problem)
        for item in pool or []
        if item.problem is not None and item.label is None
    }
    while True:
        try:
            source = as_source(sample.items)
            check_has(source, needs, who)
            if has_pixels(source):
                train_views = _views_of(require_towers(model, "tune"), sample, views, needs, cache, progress)
            elif views == "live":
                raise InputError("views='live' needs images, and only their features are stored. Remove views.")
            else:
                stored = _all_readable(encode_test_view(model, source, None, patches=Need.PATCHES in needs))
                one_view = {name: tensor[:, None] for name, tensor in stored.items()}
                if "patches" in one_view:
                    one_view["patches"] = one_view["patches"].half()
                train_views = _cached(model, sample, one_view)
                views = "test"
            return TrainSet(sample, train_views, views, tuple(skipped.values()))
        except UnreadableImagesError as error:
            skipped.update({image.id: image for image in error.unreadable})
            if pool is None:
                raise
            listed = "\n".join(f"  {image.id}: {image.reason}" for image in list(skipped.values())[:10])
            warnings.warn(
                f"Replaced {counted(len(skipped), 'unreadable training image')} by others of the class:\n{listed}",
                stacklevel=3,
            )
            sample = sample_few_shots(pool, classes, shots, seed, skip=skipped.keys())


def _views_of(
    model: TowerModel,
    sample: FewShot,
    views: int | str,
    needs: frozenset[Need],
    cache: Path | None,
    progress: Progress | None,
) -> TrainViews:
    """Live views, or encoded ones: now, or read from the cache of an interrupted run."""
    if views == "live":
        live = LiveViews(model, sample.items, torch.tensor(sample.labels), sample.seed, needs=needs)
        live.mean_features()  # every image is read once now, to find unreadable images before training
        return live
    kinds = sorted(need.value for need in needs & OF_IMAGES)
    key = hash_strings([model.fingerprint, sample.hash, str(sample.seed), str(views), *kinds])
    path = None if cache is None else cache / (TEST_VIEWS_FILE if views == "test" else VIEWS_FILE)
    if path is not None and path.exists():
        kept = {name.removesuffix(f".{key}"): t for name, t in read_tensors(path).items() if name.endswith(f".{key}")}
        if "features" in kept:
            return _cached(model, sample, kept)
    count: int | Literal["test"] = views if isinstance(views, int) else "test"
    encoded = encode_views(model, sample.items, count, sample.seed, needs, progress)
    if path is not None:
        with saving("The encoded training views", path.parent, "Nothing was trained yet."):
            write_tensors(path, {f"{name}.{key}": tensor for name, tensor in encoded.items()})
    return _cached(model, sample, encoded)


def _cached(model: Model, sample: FewShot, encoded: Tensors) -> CachedViews:
    return CachedViews(
        **encoded,
        labels=torch.tensor(sample.labels, device=model.device),
        domains=Domains.of(sample.items),
        model=model if isinstance(model, TowerModel) else None,
    )


def prepare_validation(
    model: Model,
    classes: Sequence[str],
    images: Any,
    *,
    domains: bool = False,
    needs: frozenset[Need] = frozenset(),
    progress: Progress | None = None,
    who: str = "tune",
) -> Validation:
    """Encode labelled validation images; a class without images is a warning, an unknown class an error."""
    if isinstance(images, Validation):
        return images
    items = labelled_images(images, domains, classes)
    labels = class_indices(items, classes, "Validation images")
    absent = [name for k, name in enumerate(classes) if k not in set(labels)]
    if absent:
        warnings.warn(
            f"{len(absent)} of {len(classes)} classes have no validation image, for example {absent[0]!r}: "
            "they are not validated.",
            stacklevel=3,
        )
    source = as_source(items)
    check_has(source, needs, who)
    if Need.STATES in needs:
        towers = require_towers(model, "tune")
        one_view = encode_views(towers, items, "test", 0, needs - {Need.PIXELS}, progress, full_precision=True)
        encoded = {name: tensor[:, 0] for name, tensor in one_view.items()}
    else:
        encoded = _all_readable(encode_test_view(model, source, progress, patches=Need.PATCHES in needs))
    features = encoded.pop("features")
    return Validation(
        features.to(model.device),
        torch.tensor(labels, device=model.device),
        **encoded,
        images=items,
        model=require_towers(model, "tune") if Need.PIXELS in needs else None,
        identity=hash_strings([hash_features(features), *map(str, labels)]),
    )


def encode_test_view(
    model: Model, source: Source, progress: Progress | None, *, patches: bool = False
) -> EncodedImages:
    """Features of images under the test view; unreadable images are listed."""
    batches = stream_batches(model, source, patches=patches, progress=progress, reproducible=True, who="tune")
    return collect(batches, model.feature_dim)


def _all_readable(encoded: EncodedImages) -> Tensors:
    if encoded.unreadable:
        raise UnreadableImagesError(encoded.unreadable)
    arrays = {"features": encoded.features, "patches": encoded.patches}
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}


def _identity(item: ImageItem) -> object | None:
    """A key that items of the same file or stored row share; None if unknown."""
    if item.path is not None:
        return os.path.realpath(item.path)
    return None if item.row is None else (item.row.of.identity, item.row.number)


def hash_features(features: torch.Tensor) -> str:
    """Identity of features: their images, and what made them."""
    return hashlib.blake2b(features.float().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()


@dataclass
class TrainSets:
    """The sample for each method: random views and test view are encoded once for all."""

    model: Model
    classes: Sequence[str]
    items: list[ImageItem]
    shots: int
    seed: int
    views: int | str
    methods: Sequence[Method]
    cache: Path
    _sets: dict[int | str, TrainSet] = field(default_factory=dict)

    def of(self, method: Method | None) -> TrainSet:
        """The sample with the views that the method learns from; with the test view for no method."""
        kind, who = ("test", "tune") if method is None else (method.views_of(self.views), method.name)
        alike = [one for one in self.methods if method is not None and one.views_of(self.views) == kind]
        needs = frozenset[Need]().union(*(one.needs_to_train for one in alike))
        if kind in self._sets and self._sets[kind].images.holds(needs):
            return self._sets[kind]
        # A drawn sample, with its unreadable images replaced, serves every kind of view.
        first = next(iter(self._sets.values()), None)
        with stage("Encoding images") as progress:
            prepared = prepare_training(
                self.model,
                self.classes,
                self.items if first is None else first.sample,
                self.shots,
                self.seed,
                kind,
                needs=needs,
                cache=self.cache,
                progress=progress,
                who=who,
            )
        self._sets[kind] = prepared if first is None else replace(prepared, unreadable=first.unreadable)
        return self._sets[kind]


def method_folder(folder: Path, number: int, methods: int) -> Path:
    """Where one of several methods keeps its checkpoints; a single method uses the folder itself."""
    return folder if methods == 1 else folder / f"{_METHOD}{number:02d}"


def clear_run_folder(folder: Path) -> None:
    """Remove the views and checkpoints of a run from `folder`, and the folder itself if nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    methods = sorted(folder.glob(f"{_METHOD}*"))
    for part in (*sorted(folder.glob(f"{_METHOD}*/{_SEARCHED}")), *methods, *sorted(folder.glob(_SEARCHED)), folder):
        if part.is_symlink() or not part.is_dir():
            continue
        if (part / RECORD).is_file():
            remove_bound(part, RECORD)
        if part.is_dir():
            for name in (VIEWS_FILE, TEST_VIEWS_FILE):
                (part / name).unlink(missing_ok=True)
            if not any(part.iterdir()):
                part.rmdir()
