"""The pictures of docs/tables/choose_far.py: their features, far unknowns made of them, and the tests.

The sets, pairs and splits were fixed before any result was looked at. Every second picture of a class is for
choosing, and only those are made into far unknowns; the others are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from clip_data import OpenTest

from deltaenergy import TowerModel, ZeroShotClassifier, load_images
from deltaenergy.benchmarks.spec import splits
from deltaenergy.core.labels import normal_name
from deltaenergy.evaluation.choosing.synthetic import synthetic_unknowns

# Known sets, and the unknown ones that share no class with them.
PAIRS = {
    "pacs": ("dtd10", "food3", "caltech101"),
    "oxford_pets": ("intel_scenes", "food3", "dtd10"),
    "intel_scenes": ("oxford_pets", "food3", "dtd10"),
    "food3": ("oxford_pets", "intel_scenes", "dtd10", "pacs"),
    "dtd10": ("oxford_pets", "intel_scenes", "food3", "pacs"),
    "caltech101": ("intel_scenes", "dtd10", "food3"),
}
# Caltech101's folder of no class, its second folder of faces, and what food3 has too.
NOT_OF_CALTECH = ("background google", "faces easy", "pizza")
THIRDS = 3


@dataclass(frozen=True)
class Pictures:
    """One set: features, class of each picture, which are for choosing; the far unknowns and their pictures' rows."""

    features: np.ndarray
    labels: np.ndarray
    to_choose: np.ndarray
    far: np.ndarray
    origin: np.ndarray


@dataclass(frozen=True)
class ChooseTest:
    """A test, its kind, and the far unknowns (with the class of their picture) that choose may see."""

    kind: str
    test: OpenTest
    far: np.ndarray
    far_truth: np.ndarray


def pictures(folder: Path, cache: Path, model: TowerModel) -> dict[str, Pictures]:
    """Every set, encoded once: what `cache` holds is not encoded again."""
    cache.mkdir(parents=True, exist_ok=True)
    return {name: _pictures(folder / name, cache / f"{model.fingerprint[:12]}-{name}.npz", model) for name in PAIRS}


def _pictures(folder: Path, cached: Path, model: TowerModel) -> Pictures:
    left_out = NOT_OF_CALTECH if folder.name == "caltech101" else ()
    items = [item for item in load_images(folder) if normal_name(str(item.label)) not in left_out]
    labels = np.array([normal_name(str(item.label)) for item in items])
    to_choose = np.zeros(len(items), dtype=bool)
    for label in np.unique(labels):
        to_choose[np.flatnonzero(labels == label)[::2]] = True
    rows = np.flatnonzero(to_choose)
    made, origin = synthetic_unknowns([items[row] for row in rows], model.preprocessing)
    if not cached.is_file():
        np.savez(cached, features=model.encode_images(items), far=model.encode_images(made))
    with np.load(cached) as found:
        return Pictures(found["features"], labels, to_choose, found["far"], rows[origin])


def open_tests(sets: dict[str, Pictures], model: TowerModel) -> list[ChooseTest]:
    """Far: each known set against others. Near: each third of its classes against the rest of them."""
    tests = []
    shared = {normal_name(name) for name in splits()["caltech101-removed"]["pacs"]}
    for known, others in PAIRS.items():
        one = sets[known]
        names = sorted(set(one.labels.tolist()))
        for other in others:
            unknown = sets[other]
            foreign = (
                ~np.isin(unknown.labels, list(shared)) if (known, other) == ("pacs", "caltech101") else slice(None)
            )
            tests.append(_test("far", f"{known}/{other}", one, names, unknown.features[foreign], model))
        shuffled = np.random.default_rng(0).permutation(names)
        for number, part in enumerate(np.array_split(shuffled, THIRDS), start=1):
            kept, left_out = sorted(set(names) - set(part.tolist())), np.isin(one.labels, part)
            tests.append(_test("near", f"{known}, third {number} out", one, kept, one.features[left_out], model))
    return tests


def _test(
    kind: str, name: str, one: Pictures, classes: list[str], unknown: np.ndarray, model: TowerModel
) -> ChooseTest:
    rows, far = np.isin(one.labels, classes), np.isin(one.labels[one.origin], classes)
    place = {label: position for position, label in enumerate(classes)}
    truth = np.array([place[label] for label in one.labels[rows]])
    far_truth = np.array([place[label] for label in one.labels[one.origin[far]]])
    classifier = ZeroShotClassifier(model, classes)
    test = OpenTest(name, classifier, one.features[rows], truth, one.to_choose[rows], unknown)
    return ChooseTest(kind, test, one.far[far], far_truth)
