"""The plan of a run: cases with their images, methods with their seeds, and what is skipped and why."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from deltaenergy.benchmarks.results import Skip
from deltaenergy.benchmarks.rows import BenchmarkRow
from deltaenergy.benchmarks.sets import (
    DataRoot,
    MissingData,
    case_classes,
    draw_shots,
    first_of_each,
    order,
    resolve,
)
from deltaenergy.benchmarks.spec import BenchmarkSpec, Case, SetSpec
from deltaenergy.data.items import ImageItem
from deltaenergy.evaluation.results import Group
from deltaenergy.evaluation.sets import LoadedSet
from deltaenergy.files import hash_strings
from deltaenergy.scores.registry import make_score
from deltaenergy.tuning.fewshot import FewShot

# Without training images, this share of the closed test images is used to fit scores, and not tested.
HELD_OUT_SHARE = 0.1


class FitImages(NamedTuple):
    """ID images that a score is fitted on: their source, and which test images they remove."""

    source: str
    items: list[ImageItem]
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlannedCase:
    """A case with one class list and one seed (None if nothing is sampled), and the methods that run on it.

    Attributes:
        train, validation: the few training images, and disjoint images that epochs and hyper-parameters are chosen on.
        fit: the images that scores are fitted on.
    """

    case: Case
    seed: int | None
    names: list[str]
    closed: list[LoadedSet]
    open: list[LoadedSet]
    fit: FitImages
    train: FewShot | None = None
    validation: list[ImageItem] = field(default_factory=list)
    methods: list[BenchmarkRow] = field(default_factory=list)

    @property
    def images_hash(self) -> str:
        """Identity of all images that are tested or trained on."""
        sets = [(images.name, [item.id for item in images.items]) for images in (*self.closed, *self.open)]
        train = [self.train.hash if self.train else "", *(item.id for item in self.validation)]
        return hash_strings([*train, *(text for name, ids in sets for text in (name, *ids))])


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
        # Images are sampled, to tune on or to fit a score.
        seeded = [method for method in mine if method.tuner is not None or make_score(method.score).needs_fit]
        fixed = [method for method in mine if method not in seeded]
        turns: list[tuple[int | None, list[BenchmarkRow]]] = [(seed, seeded) for seed in seeds if seeded]
        if "{seed}" in case.classes:
            turns = [(seed, mine) for seed in seeds]
        elif fixed:
            turns.insert(0, (None, fixed))
        for seed, chosen in turns:
            try:
                found = _find(case, spec, data, seed, limit, skips, as_released)
            except MissingData as error:
                skips[Skip(case.name, f"dataset {case.dataset}", str(error))] = None
                continue
            if found is None:
                continue
            runnable = [method for method in chosen if method.tuner is None or found.train is not None]
            for method in chosen:
                if method not in runnable:
                    reason = "it needs training images, and there are none."
                    skips[Skip(case.name, f"method {method.label}", reason)] = None
            planned.append(replace(found, methods=runnable))
    return planned, list(skips)


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
    # The closed set closest to the training images.
    tested = next((images.items for images in closed if images.group is Group.ID), closed[0].items)
    held_out = sorted(tested, key=order)[: max(1, round(HELD_OUT_SHARE * len(tested)))]
    fit = FitImages("held-out test images", held_out, frozenset(item.id for item in held_out))
    rule, chosen_on = spec.validation, list(tested)
    if rule.source == "test":
        fit = FitImages("test images", first_of_each(tested, rule.per_class))
    names = [entry.name for entry in classes]
    planned = PlannedCase(case, seed, names, closed, found(case.open, "open"), fit)
    if seed is None or case.train is None:
        return planned
    try:
        pool = resolve(case.train, Group.ID, classes, data, seed, None).items
    except MissingData as error:
        skips[Skip(case.name, f"training images ({case.train.dataset})", str(error))] = None
        return planned
    # Labels are class ids here, which are unique; the sample then gets the names.
    ids, name_of = [entry.id for entry in classes], {entry.id: entry.name for entry in classes}
    sample = draw_shots(pool, ids, spec.shots, seed, case.train.draw, as_released=as_released)
    if rule.source != "test":
        fit = FitImages("training images", sample.items)
        unused = {item.id for item in pool} - {item.id for item in sample.items}
        chosen_on = [item for item in pool if item.id in unused]
    if rule.source == "val":
        own = replace(case.train, split="val", splits={})
        with contextlib.suppress(MissingData):
            validation = resolve(own, Group.ID, classes, data, seed, None).items
            used = {item.id for images in closed for item in images.items} | {item.id for item in sample.items}
            chosen_on = [item for item in validation if item.id not in used] or chosen_on
    labelled = (item for item in first_of_each(chosen_on, min(spec.shots, rule.per_class)) if item.label in name_of)
    return replace(
        planned,
        fit=fit,
        train=FewShot(tuple(names), sample.items, sample.labels, sample.shots, seed),
        validation=[replace(item, label=name_of[item.label or ""]) for item in labelled],
    )
