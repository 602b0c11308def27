"""Named sets of images and their labels: loaded, limited, matched to the classes, and checked for overlaps."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from deltaenergy.core.arrays import GrowingArray
from deltaenergy.core.classes import ClassFinder, first_of_name
from deltaenergy.core.needs import Lack
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import Group
from deltaenergy.scores.availability import unlabelled
from deltaenergy.source import (
    Source,
    as_source,
    items_of,
    items_on_demand,
    list_images,
    load_images,
    names_no_model,
    with_unique_ids,
)
from deltaenergy.store.store import Store, StoredItems

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier

UNKNOWN = -1


class ImageSet(NamedTuple):
    """Images under one name: anything `load_images` takes, or unit features (N, D).

    Labels are class names, one per image; by default, images in subfolders have their folder's name.
    """

    name: str
    images: Any
    labels: Sequence[str | None] | None = None


@dataclass(frozen=True)
class LoadedSet:
    """A set whose images are listed.

    Attributes:
        items: its images; those of a whole feature store are `StoredItems`.
        labels: the position of each image's class, −1 if unknown; if None, from the item's label.
        classifier: a variant of the evaluated classifier, used for this set.
        own_classes: the class list of that classifier if it differs: then only accuracy counts.
        unreadable: images already known to be unreadable.
    """

    name: str
    group: Group
    items: Sequence[ImageItem]
    labels: npt.NDArray[np.int64] | None = None
    classifier: Classifier | None = None
    own_classes: tuple[str, ...] | None = None
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def store(self) -> Store | None:
        """The feature store, if the set is a whole store."""
        return self.items.store if isinstance(self.items, StoredItems) else None

    @property
    def source(self) -> Source:
        """The images to score."""
        return as_source(list(self.items)) if self.store is None else self.store

    def check_readable(self, items: Sequence[ImageItem], unreadable: Sequence[Unreadable]) -> None:
        """Raise `InputError` if none of its images could be read."""
        if not items:
            raise InputError(
                f"No image of the {self.group.value} set {self.name!r} could be read; the first is "
                f"{unreadable[0].id}: {unreadable[0].reason}"
            )

    def __len__(self) -> int:
        return len(self.items)


def named_sets(given: Any, group: Group) -> list[ImageSet]:
    """Sets as a user passes them: `{name: images}`, a list of `(name, images)`, or the images of a single set."""
    if isinstance(given, Mapping):
        return [ImageSet(str(name), images) for name, images in given.items()]
    if isinstance(given, tuple) and _is_pair(given):
        return [ImageSet(*given)]
    if isinstance(given, (list, tuple)) and all(_is_pair(entry) for entry in given):
        return [ImageSet(*entry) for entry in given]
    if isinstance(given, (str, os.PathLike)):
        return [ImageSet(Path(given).name or group.value, given)]
    if isinstance(given, Iterator):
        return named_sets(list(given), group)
    return [ImageSet(group.value, given)]


def _is_pair(entry: Any) -> bool:
    """Whether it is `(name, images)` or `(name, images, labels)`."""
    return isinstance(entry, (tuple, list)) and 2 <= len(entry) <= 3 and isinstance(entry[0], str)


def grouped_sets(
    id_sets: Any, shifted_sets: Any, open_sets: Any, limit: int | None, who: str
) -> list[tuple[ImageSet, Group]]:
    """All sets that `who` was given, each with its group; there must be an ID set, and `limit` a number of images.

    Images are listed, so a mistyped path fails at once; stores and features stay.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit!r}.")
    groups = ((id_sets, Group.ID), (shifted_sets, Group.SHIFTED), (open_sets, Group.OPEN))
    given = [(image_set, group) for sets, group in groups for image_set in named_sets(sets, group)]
    if not any(group is Group.ID for _, group in given):
        raise InputError(f"{who} needs at least one ID set: images of the classes.")
    return [(one._replace(images=list_images(one.images, hold=True)), group) for one, group in given]


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """A name for each path: as many of its last parts as make it unique."""
    parts = {path: [part for part in Path(path).parts if part not in {"/", "."}] or [path] for path in paths}
    if len(parts) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError(f"{twice} is given twice: pass each set of images once.")
    names: dict[str, str] = {}
    for path, own in parts.items():
        for length in range(1, len(own) + 1):
            name = "/".join(own[-length:])
            if sum("/".join(other[-length:]) == name for other in parts.values()) == 1:
                break
        names[path] = name
    return names


def known_items(given: Iterable[tuple[ImageSet, Group]]) -> Iterator[ImageItem]:
    """The images of the ID sets that bring their own labels, one by one."""
    for one, group in given:
        if group is Group.ID and one.labels is None:
            yield from items_of(one.images)


def no_labels(given: Iterable[tuple[ImageSet, Group]]) -> Lack | None:
    """What a score that learns from classes lacks if no ID image has a label."""
    lacks = [unlabelled(one.images) for one, group in given if group is Group.ID and one.labels is None]
    return lacks[0] if lacks and None not in lacks else None


def load_sets(
    given: Iterable[tuple[ImageSet, Group]], limit: int | None, seed: int, *, hold: bool = True
) -> list[LoadedSet]:
    """List the images of each set; with `limit`, at most that many of each, drawn without replacement.

    Images of a whole feature store are looked up there, unless they are held.
    """
    rng = np.random.default_rng(seed)
    return _with_unique_ids([_load(image_set, group, limit, rng, hold) for image_set, group in given])


def _load(entry: ImageSet, group: Group, limit: int | None, rng: np.random.Generator, hold: bool) -> LoadedSet:
    source = as_source(entry.images)
    held = hold or limit is not None or entry.labels is not None
    items = load_images(source) if held else items_on_demand(source)
    if isinstance(items, StoredItems):
        return LoadedSet(entry.name, group, items)
    if names_no_model(source):  # rows of arrays are named by their numbers
        items = [replace(item, id=f"{entry.name} {item.id}") for item in items]
    if not items:
        raise InputError(f"The {group.value} set {entry.name!r} has no image.")
    if entry.labels is not None:
        if len(entry.labels) != len(items):
            raise InputError(f"Set {entry.name!r} has {len(items)} images but {len(entry.labels)} labels.")
        items = [replace(item, label=label) for item, label in zip(items, entry.labels)]
    if limit is not None and limit < len(items):
        chosen = np.sort(rng.choice(len(items), limit, replace=False))
        items = [items[i] for i in chosen]
    return LoadedSet(entry.name, group, items)


def _with_unique_ids(sets: Sequence[LoadedSet]) -> list[LoadedSet]:
    """The sets with ids that are unique among them all.

    Set names must differ, and no file may be in two groups.
    """
    twice = [name for name, count in Counter(image_set.name for image_set in sets).items() if count > 1]
    if twice:
        raise InputError(f"Two sets are named {twice[0]!r}: give each set its own name.")
    sets = _with_names_of_their_own(sets)
    listed = [image_set for image_set in sets if image_set.store is None]
    owner: dict[str, LoadedSet] = {}
    for image_set in listed:
        for item in image_set.items:
            if item.path is None:
                continue
            # abspath, not resolve, which would touch up to a million files.
            first = owner.setdefault(os.path.abspath(item.path), image_set)  # noqa: PTH100
            if first.group is not image_set.group:
                raise InputError(
                    f"{item.id} is in the {first.group.value} set {first.name!r} and in the {image_set.group.value} "
                    f"set {image_set.name!r}. Each image belongs to one group: is one folder inside the other?"
                )
    unique = iter(with_unique_ids([item for image_set in listed for item in image_set.items]))
    return [
        replace(image_set, items=[next(unique) for _ in image_set.items]) if image_set.store is None else image_set
        for image_set in sets
    ]


def _with_names_of_their_own(sets: Sequence[LoadedSet]) -> Sequence[LoadedSet]:
    """The sets; if an image of a store has the name of one of another set, stores are listed, to make names unique."""
    if all(image_set.store is None for image_set in sets):
        return sets
    hashes = GrowingArray(np.int64, expected=sum(map(len, sets)))
    for image_set in sets:
        if isinstance(image_set.items, StoredItems):
            for some in image_set.items.id_hashes():
                hashes.add(some)
        else:
            hashes.add(np.unique([hash(item.id) for item in image_set.items]).astype(np.int64))
    together = hashes.finish()
    together.sort()
    if not (together[1:] == together[:-1]).any():
        return sets
    return [
        image_set if image_set.store is None else replace(image_set, items=image_set.store.items())
        for image_set in sets
    ]


def same_class(classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """For each class the first index with the same name, so duplicates count as one class."""
    return np.array(first_of_name(classes), dtype=np.int64)


def match_labels(image_set: LoadedSet, classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """The class index of each image of a set, −1 if its label is unknown.

    In an ID or shifted set, a label that is not a class is an error, because the image would count as known; if no
    label is a class, the set counts as unlabelled. In an open set, a label that *is* a class is a warning.
    """
    finder, first = ClassFinder(classes), first_of_name(classes)
    names, codes = _labels(image_set.items)
    positions = [finder.find(label) for label in names]
    # The last entry is that of images without a label, whose code is −1.
    index_of = np.array([UNKNOWN if i is None else first[i] for i in positions] + [UNKNOWN], dtype=np.int64)
    found = {label for label, index in zip(names, index_of) if index != UNKNOWN}
    if image_set.group is Group.OPEN:
        if found:
            warnings.warn(
                f"The open set {image_set.name!r} has folders named like classes: {_listed(found)}. Images of known "
                "classes do not belong in an open set.",
                stacklevel=4,
            )
        return np.broadcast_to(np.int64(UNKNOWN), len(codes))
    if not names:
        return np.broadcast_to(np.int64(UNKNOWN), len(codes))
    labels = index_of[codes]
    strange = np.flatnonzero((labels == UNKNOWN) & (codes >= 0))
    if len(strange) and not found:
        warnings.warn(
            f"No folder of the {image_set.group.value} set {image_set.name!r} is named like a class (it has "
            f"{_listed({names[code] for code in np.unique(codes[strange])})}): its accuracy is not computed.",
            stacklevel=4,
        )
    elif len(strange):
        wrong = (names[code] for code in codes[strange])
        raise finder.unknown(
            f"The {image_set.group.value} set {image_set.name!r}", image_set.items[int(strange[0])].id, wrong
        )
    return labels


def _labels(items: Sequence[ImageItem]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """The labels that occur, and for each image the position of its label, −1 if it has none."""
    if isinstance(items, StoredItems):
        return items.label_names, items.label_codes
    names = dict.fromkeys(item.label for item in items if item.label is not None)
    code_of = {label: code for code, label in enumerate(names)}
    codes = [-1 if item.label is None else code_of[item.label] for item in items]
    return list(names), np.array(codes, dtype=np.int32)


def _listed(names: Iterable[Any], most: int = 5) -> str:
    ordered = sorted(map(str, names))
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(map(repr, ordered[:most])) + more
