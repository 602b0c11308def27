"""From a benchmark's image sets to images: files, classes, and what is missing.

A class is identified by its id in the dataset (an ImageNet wnid, a folder name), because names are not unique.
`DataRoot` finds datasets of the catalogue in a user's folder; the drawn dataset is made on demand.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from deltaenergy.benchmarks.drawn import OBJECTS, drawn_images
from deltaenergy.benchmarks.spec import Case, SetSpec, class_list
from deltaenergy.core.classes import DEFAULT_TEMPLATE
from deltaenergy.data.catalogue.dataset import DatasetMissingError, get_dataset
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.evaluation.results import Group
from deltaenergy.evaluation.sets import UNKNOWN, LoadedSet
from deltaenergy.tuning.fewshot import FewShot, sample_few_shots

DRAWN = "drawn"


class MissingData(DeltaEnergyError):
    """A dataset is missing; the message says where it was expected and how to get it."""


@dataclass(frozen=True)
class ClassEntry:
    """A class of a dataset: its id, and its class name."""

    id: str
    name: str


@dataclass
class DataRoot:
    """Datasets in a user's folder (None = only the drawn dataset)."""

    root: Path | None = None
    _read: dict[tuple[str, str | None], list[ImageItem]] = field(default_factory=dict)

    def classes(self, dataset: str) -> list[ClassEntry]:
        """The classes of a dataset, in its canonical order."""
        if dataset == DRAWN:
            return [ClassEntry(name, name) for name in OBJECTS]
        known = get_dataset(dataset)
        if known.label_by != "name":
            return [ClassEntry(name, name) for name in known.names]
        return [ClassEntry(entry.key, entry.name) for entry in known.classes]

    def images(self, dataset: str, split: str | None) -> list[ImageItem]:
        """The images of a split (None = the only one), labelled by class id. Raises `MissingData`."""
        key = (dataset, split)
        if dataset == DRAWN and split == "val":
            raise MissingData("The drawn dataset has no validation split.")
        if key not in self._read:
            self._read[key] = drawn_images(split or "test") if dataset == DRAWN else self._catalogued(dataset, split)
        return self._read[key]

    def partial(self) -> dict[str, str]:
        """The incomplete datasets among those read, and how many images they have."""
        from deltaenergy.data.catalogue.audit import PARTIAL, check_dataset

        found: dict[str, str] = {}
        for name in dict.fromkeys(dataset for dataset, _ in self._read if dataset != DRAWN):
            if self.root is not None and (report := check_dataset(get_dataset(name), self.root)).status == PARTIAL:
                counted = [count for count in report.counts.values() if count.expected]
                total = sum(count.expected or 0 for count in counted)
                found[name] = f"{sum(count.found for count in counted):,} of {total:,} images"
        return found

    def _catalogued(self, dataset: str, split: str | None) -> list[ImageItem]:
        known = get_dataset(dataset)
        if self.root is None:
            raise MissingData(f"{known.title} was not found: pass a folder of datasets as `data`.")
        try:
            items = known.images(self.root, split, label="key" if known.label_by == "name" else None)
        except DatasetMissingError as error:
            raise MissingData(str(error)) from error
        # Ids relative to the root, so results do not depend on its path.
        return [replace(item, id=_relative(item.id, self.root)) for item in items]


def template_of(dataset: str) -> str:
    """A dataset's own prompt."""
    return DEFAULT_TEMPLATE if dataset == DRAWN else get_dataset(dataset).template


def case_classes(case: Case, data: DataRoot, seed: int | None) -> list[ClassEntry]:
    """The classes of the case's classifier, in order."""
    known = data.classes(case.dataset)
    if case.classes == "all":
        return known
    by_id = {entry.id: entry for entry in known}
    wanted = class_list(case.classes.replace("{seed}", str(seed)), f"case {case.name}")
    unknown = [name for name in wanted if name not in by_id]
    if unknown:
        raise InputError(f"case {case.name}: dataset {case.dataset} has no class {unknown[0]!r}.")
    return [by_id[name] for name in wanted]


def resolve(
    images: SetSpec,
    group: Group,
    closed: Sequence[ClassEntry],
    data: DataRoot,
    seed: int | None,
    limit: int | None,
) -> LoadedSet:
    """The images of a set, each with the position of its class among `closed`. Raises `MissingData` if there are none.

    Images are labelled by id, which is unique.
    """
    position = {entry.id: i for i, entry in enumerate(closed)}
    items = _of_splits(images, data) if images.splits else data.images(images.dataset, images.split)
    if images.classes == "closed":
        items = [item for item in items if item.label in position]
    elif images.classes == "open":
        items = [item for item in items if item.label not in position]
    elif images.classes != "all":
        wanted = set(class_list(images.classes.replace("{seed}", str(seed))))
        items = [item for item in items if item.label in wanted]
    if images.without:
        removed = {name.casefold() for name in class_list(images.without)}
        items = [item for item in items if (item.label or "").casefold() not in removed]
    if images.domains:
        items = [item for item in items if item.domain in images.domains]
    if not items:
        raise MissingData(f"{images.dataset}: no image of the set {images.name!r} was found.")
    if images.per_class is not None:
        items = _capped(items, images.per_class)
    if limit is not None:
        items = _limited(items, limit)
    return LoadedSet(
        images.name,
        group,
        items,
        labels=np.array([position.get(item.label or "", UNKNOWN) for item in items], np.int64),
        own_classes=tuple(entry.name for entry in closed) if images.own_classes else None,
    )


def first_of_each(items: Iterable[ImageItem], per_class: int) -> list[ImageItem]:
    """At most `per_class` images of each class, in the fixed shuffle."""
    return [item for rank, item in _ranked(items) if rank < per_class]


def _of_splits(images: SetSpec, data: DataRoot) -> list[ImageItem]:
    """At most this many images of each split and class; missing splits are skipped, but one must exist."""
    found: list[ImageItem] = []
    missing: list[MissingData] = []
    for split, per_class in images.splits.items():
        try:
            items = data.images(images.dataset, split)
        except MissingData as error:
            missing.append(error)
            continue
        found += items if per_class is None else _capped(items, per_class)
    if not found:
        raise missing[0]
    return found


def draw_shots(
    pool: Sequence[ImageItem], classes: Sequence[str], shots: int, seed: int, draw: str, *, as_released: bool
) -> FewShot:
    """The few training images of each class.

    spread     `shots` of each class, spread over its domains
    balanced   ⌊shots / E⌋ of each class and domain, E domains: 15 for 16 shots of three. As released, a bug
               draws them from all classes of the domain, so classes get unequal numbers
    pooled     `shots` of each class, whatever their domains
    """
    domains = sorted({item.domain or "" for item in pool})
    each = max(1, shots // len(domains))
    if draw == "balanced" and as_released:
        rng = np.random.default_rng(seed)
        of_domain = {domain: [item for item in pool if (item.domain or "") == domain] for domain in domains}
        items = [
            own[i]
            for name in classes
            for own in of_domain.values()
            for i in rng.choice(len(own), min(each, len(own)), replace=False)
        ]
        return FewShot(tuple(classes), items, [classes.index(item.label or "") for item in items], shots, seed)
    if draw == "balanced":
        return sample_few_shots(pool, classes, each * len(domains), seed)
    if draw == "pooled":
        own = {item.id: item for item in pool}
        sample = sample_few_shots([replace(item, domain=None) for item in pool], classes, shots, seed)
        return replace(sample, items=[own[item.id] for item in sample.items])
    return sample_few_shots(pool, classes, shots, seed)


def _capped(items: Iterable[ImageItem], per_class: int) -> list[ImageItem]:
    """At most `per_class` images of each class: those with the lowest hashes of their ids."""
    kept = {item.id for rank, item in _ranked(items) if rank < per_class}
    return [item for item in items if item.id in kept]


def _limited(items: list[ImageItem], limit: int) -> list[ImageItem]:
    """At most `limit` images, in turn from each class, so a quick run covers all classes."""
    ranked = sorted(_ranked(items), key=lambda pair: (pair[0], order(pair[1])))[:limit]
    kept = {item.id for _, item in ranked}
    return [item for item in items if item.id in kept]


def _ranked(items: Iterable[ImageItem]) -> Iterator[tuple[int, ImageItem]]:
    """Each image with its position in its class, in the fixed shuffle."""
    places: Counter[str | None] = Counter()
    for item in sorted(items, key=order):
        yield places[item.label], item
        places[item.label] += 1


def order(item: ImageItem) -> str:
    """A fixed shuffle: the hash of the id."""
    return hashlib.sha256(item.id.encode()).hexdigest()


def _relative(path: str, root: Path) -> str:
    inside = Path(path)
    return inside.relative_to(root).as_posix() if inside.is_relative_to(root) else path
