"""Tests of scores on feature stores: one store per dataset, all of one model, written by
`deltaenergy features IMAGES/SET --out STORES/SET`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from clip_data import OpenTest

from deltaenergy import Store, ZeroShotClassifier
from deltaenergy.core.classes import normal_name
from deltaenergy.models.base import TowerModel

# Caltech101: no class, and a second copy of the faces.
NO_CLASS = {"BACKGROUND_Google", "Faces_easy"}
# Caltech101 classes that PACS also has: persons, dogs, guitars, elephants.
OVERLAPS = {"Faces", "Faces_easy", "dalmatian", "electric_guitar", "elephant", "snoopy"}


class Stores:
    """A folder of feature stores, and the tests that can be made of them."""

    def __init__(self, folder: Path, model: TowerModel) -> None:
        self.folder, self.model = folder, model

    def rows(
        self, name: str, wanted: Callable[[str], bool] = lambda _: True
    ) -> tuple[npt.NDArray[np.float32], list[str]]:
        """Features and class names of a dataset; only of the wanted classes."""
        store = Store.open(self.folder / name, self.model)
        labels = [str(label) for label in store.labels]
        kept = [row for row, label in enumerate(labels) if wanted(label)]
        return store.features(kept), [_name(labels[row]) for row in kept]

    def domains(self, name: str) -> list[str]:
        """The domain of each image: the folder above that of its class."""
        return [Path(one).parent.parent.name for one in Store.open(self.folder / name, self.model).ids]

    def pair(
        self,
        known: str,
        unknown: str,
        known_classes: Callable[[str], bool] = lambda _: True,
        unknown_classes: Callable[[str], bool] = lambda _: True,
        name: str | None = None,
    ) -> OpenTest:
        """The classes of one dataset against those of another, or of the same. Every second image is `to_choose`."""
        features, labels = self.rows(known, known_classes)
        classes = sorted(set(labels))
        truth = np.array([classes.index(label) for label in labels])
        others = self.rows(unknown, unknown_classes)[0]
        every_second = np.arange(len(truth)) % 2 == 0
        classifier = ZeroShotClassifier(self.model, classes)
        return OpenTest(name or f"{known}/{unknown}", classifier, features, truth, every_second, others)

    def halves(self, name: str, without: Iterable[str] = ()) -> list[OpenTest]:
        """Every second class of a dataset against the others, both ways."""
        classes = self._classes(name, without)
        even, odd = set(classes[::2]), set(classes[1::2])
        return [
            self.pair(name, name, even.__contains__, odd.__contains__, f"{name}, even/odd classes"),
            self.pair(name, name, odd.__contains__, even.__contains__, f"{name}, odd/even classes"),
        ]

    def ends(self, name: str, without: Iterable[str] = ()) -> list[OpenTest]:
        """The first half of a dataset's classes in alphabetical order against the second, both ways."""
        classes = self._classes(name, without)
        first, second = set(classes[: len(classes) // 2]), set(classes[len(classes) // 2 :])
        return [
            self.pair(name, name, first.__contains__, second.__contains__, f"{name}, first/second half"),
            self.pair(name, name, second.__contains__, first.__contains__, f"{name}, second/first half"),
        ]

    def left_out(self, name: str) -> list[OpenTest]:
        """Each class of a dataset in turn as the unknown one."""

        def test(out: str) -> OpenTest:
            return self.pair(name, name, lambda label: label != out, lambda label: label == out, f"{name}−{out}")

        return [test(out) for out in self._classes(name)]

    def _classes(self, name: str, without: Iterable[str] = ()) -> list[str]:
        store = Store.open(self.folder / name, self.model)
        return sorted({str(label) for label in store.labels} - set(without))


def _name(label: str) -> str:
    """A class name from a folder name: those of ImageNet start with the WordNet id."""
    head, _, rest = label.partition("_")
    return normal_name(rest if head[:1] == "n" and head[1:].isdigit() and rest else label)
