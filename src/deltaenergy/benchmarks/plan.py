"""The plan of a run: cases with their images, methods with their seeds, and what is skipped and why."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltaenergy.benchmarks.results import Skip
from deltaenergy.benchmarks.rows import BenchmarkRow
from deltaenergy.benchmarks.sets import (
    ClassEntry,
    DataRoot,
    MissingData,
    case_classes,
    draw_shots,
    first_of_each,
    order,
    resolve,
)
from deltaenergy.benchmarks.spec import BenchmarkSpec, Case, SetSpec, ValidationRule
from deltaenergy.data.items import ImageItem
from deltaenergy.evaluation.results import Group
from deltaenergy.evaluation.sets import LoadedSet
from deltaenergy.files import hash_strings
from deltaenergy.scores.registry import make_score
from deltaenergy.tuning.fewshot import FewShot

# Without training images, this share of the closed test images is used to fit scores, and not tested.
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class PlannedCase:
    """A case with one class list and one seed (None if nothing is sampled), and the methods that run on it."""

    case: Case
    seed: int | None
    classes: list[ClassEntry]
    train: FewShot | None
    # Labelled by class name, disjoint from `train`: epochs and hyper-parameters are chosen on them.
    validation: list[ImageItem]
    closed: list[LoadedSet]
    open: list[LoadedSet]
    methods: list[BenchmarkRow]

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.classes]

    @property
    def images_hash(self) -> str:
        """Identity of all images that are tested or trained on."""
        sets = [(images.name, [item.id for item in images.items]) for images in (*self.closed, *self.open)]
        train = [self.train.hash if self.train else "", *(item.id for item in self.validation)]
        return hash_strings([*train, *(text for name, ids in sets for text in (name, *ids))])


@dataclass(frozen=True)
class FitImages:
    """ID images that a score is fitted on: their source, and which test images they remove."""

    source: str
    items: list[ImageItem]
    taken: frozenset[str] = frozenset()


def plan(
    spec: BenchmarkSpec,
    data: DataRoot,
    methods: Sequence[BenchmarkRow],
    seeds: Sequence[int],
    limit: int | None,
    *,
    as_released: bool = False,
) -> tuple[list[PlannedCase], list[Skip]]:
    """Find the images of every case, and its rows. Missing data is skipped, never an error."""
    planned: list[PlannedCase] = []
    skips: dict[Skip, None] = {}
    for case in spec.cases:
        # Tuners are timed on cases with training images, scores on the others.
        mine = [
            method.under(case.settings)
            for method in methods
            if spec.measures != "cost" or (method.tuner is None) == (case.train is None)
        ]
        seeded = [method for method in mine if needs_seed(method)]
        fixed = [method for method in mine if not needs_seed(method)]
        turns: list[tuple[int | None, list[BenchmarkRow]]] = [(seed, seeded) for seed in seeds if seeded]
        if case.varies_with_seed:
            turns = [(seed, mine) for seed in seeds]
        elif fixed:
            turns.insert(0, (None, fixed))
        for seed, chosen in turns:
            try:
                found = _find(case, spec, data, seed, limit, skips, as_released)
            except MissingData as error:
                skips[Skip(case.name, f"dataset {case.dataset}", str(error))] = None
                continue
            if found is not None:
                planned.append(_with_methods(found, chosen, skips))
    return planned, list(skips)


def needs_seed(method: BenchmarkRow) -> bool:
    """Whether a method samples images, to be tuned or fitted."""
    return method.tuner is not None or make_score(method.score).needs_fit


def fit_images(planned: PlannedCase, validation: ValidationRule) -> FitImages:
    """The ID images that scores are fitted on: the validation images, if these are also tested."""
    tested = _tested(planned)
    if validation.source == "test":
        return FitImages("test images", first_of_each(tested.items, validation.per_class))
    if planned.train is not None:
        return FitImages("training images", planned.train.items)
    ranked = sorted(tested.items, key=order)
    held = ranked[: max(1, round(HELD_OUT_SHARE * len(ranked)))]
    return FitImages("held-out test images", held, frozenset(item.id for item in held))


def _tested(planned: PlannedCase) -> LoadedSet:
    """The closed set closest to the training images."""
    return next((images for images in planned.closed if images.group is Group.ID), planned.closed[0])


def _find(
    case: Case,
    spec: BenchmarkSpec,
    data: DataRoot,
    seed: int | None,
    limit: int | None,
    skips: dict[Skip, None],
    as_released: bool,
) -> PlannedCase | None:
    classes = case_classes(case, data, seed)

    def found(sets: Sequence[SetSpec], role: str) -> list[LoadedSet]:
        result = []
        for images in sets:
            group = Group.OPEN if role == "open" else Group.ID if images.kind == "id" else Group.SHIFTED
            try:
                told = data.classes(images.dataset) if images.own_classes else classes
                result.append(resolve(images, group, told, data, seed, limit))
            except MissingData as error:
                skips[Skip(case.name, f"{role} set {images.name} ({images.dataset})", str(error))] = None
        return result

    closed = found(case.closed, "closed")
    if not closed:
        return None
    planned = PlannedCase(case, seed, classes, None, [], closed, found(case.open, "open"), [])
    if seed is None or case.train is None:
        return planned
    try:
        pool = resolve(case.train, Group.ID, classes, data, seed, None).items
    except MissingData as error:
        skips[Skip(case.name, f"training images ({case.train.dataset})", str(error))] = None
        return planned
    # Labels are class ids here, which are unique; the sample then gets the names.
    ids, names = [entry.id for entry in classes], {entry.id: entry.name for entry in classes}
    sample = draw_shots(pool, ids, spec.shots, seed, case.train.draw, as_released=as_released)
    rest = _to_validate(planned, case.train, spec.validation, data, pool, {item.id for item in sample.items})
    return replace(
        planned,
        train=FewShot(tuple(names[name] for name in ids), sample.items, sample.labels, sample.shots, seed),
        validation=named(first_of_each(rest, min(spec.shots, spec.validation.per_class)), names),
    )


def _to_validate(
    planned: PlannedCase,
    train: SetSpec,
    validation: ValidationRule,
    data: DataRoot,
    pool: Sequence[ImageItem],
    trained: Collection[str],
) -> list[ImageItem]:
    """Candidates for validation images: none that is trained on."""
    if validation.source == "test":
        return list(_tested(planned).items)
    if validation.source == "val":
        tested = {item.id for images in planned.closed for item in images.items}
        own = replace(train, split="val", splits={})
        with contextlib.suppress(MissingData):
            found = resolve(own, Group.ID, planned.classes, data, planned.seed, None).items
            if left := [item for item in found if item.id not in trained and item.id not in tested]:
                return left
    return [item for item in pool if item.id not in trained]


def named(items: Iterable[ImageItem], names: Mapping[str, str]) -> list[ImageItem]:
    """Images labelled by class id, labelled by class name instead."""
    return [replace(item, label=names[item.label]) for item in items if item.label is not None and item.label in names]


def _with_methods(found: PlannedCase, methods: Sequence[BenchmarkRow], skips: dict[Skip, None]) -> PlannedCase:
    for method in methods if found.train is None else ():
        if method.tuner is not None:
            reason = "it needs training images, and there are none."
            skips[Skip(found.case.name, f"method {method.label}", reason)] = None
    return replace(found, methods=[one for one in methods if one.tuner is None or found.train is not None])
