"""Labels and class names: one way to find a label in a class list, and one way from labelled images to a class list.

A label is a folder's name, a cell of a table, or what a user typed. It stands for the class of the very same name if
there is one, else for the first class that differs from it in nothing but case, `_`, `-`, accents' encoding or spaces.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.data.items import ImageItem

# A longer class list would bury the message it is meant to help with.
MOST_SHOWN = 50


def normal_name(name: str) -> str:
    """A class or folder name for comparison: case, `_`, `-` and repeated spaces do not matter."""
    plain = unicodedata.normalize("NFC", name).casefold()
    return " ".join(plain.replace("_", " ").replace("-", " ").split())


def first_of_name(classes: Sequence[str]) -> list[int]:
    """For each class the first position with the same name, so that duplicates count as one class."""
    first: dict[str, int] = {}
    return [first.setdefault(normal_name(name), position) for position, name in enumerate(classes)]


class ClassFinder:
    """Finds labels in one class list."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        backwards = list(reversed(list(enumerate(classes))))
        self._exact = {name: position for position, name in backwards}
        self._alike = {normal_name(name): position for position, name in backwards}

    def find(self, label: str) -> int | None:
        """The position of the label's class, or None."""
        exact = self._exact.get(label)
        return self._alike.get(normal_name(label)) if exact is None else exact

    def unknown(self, what: str, image: str, labels: Iterable[str]) -> InputError:
        """The error for labels (one per image) that are no class; `image` is the first image that has one."""
        counts = Counter(labels)
        first = next(iter(counts))
        others = [repr(label) for label in counts if label != first]
        more = f" Neither are {_listed(others)}." if others else ""
        return InputError(
            f"{what}: {image} is of class {first!r}, which is not among the {len(self.classes)} classes."
            f"{self.near(first)}{more} Add the class, rename the folder, or remove the images ({counts.total()} in "
            "all)."
        )

    def near(self, label: str) -> str:
        """The tail of a message on a label that is no class: the nearest names, and all of them where they are few."""
        if len(self.classes) <= MOST_SHOWN:
            return did_you_mean(normal_name(label), self.classes)
        near = difflib.get_close_matches(normal_name(label), self.classes, n=2)
        return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def class_indices(items: Sequence[ImageItem], classes: Sequence[str], what: str) -> list[int]:
    """The position of each image's class. Images without a label, or of no class, are an error; `what` begins it.

    What stands there without a label because it cannot be read, such as a broken link, has position −1.
    """
    finder = ClassFinder(classes)
    found: list[int] = []
    for item in items:
        if item.label is None and item.problem is not None:
            found.append(-1)
            continue
        if item.label is None:
            raise InputError(
                f"{what}: {item.id} has no class label. Pass a folder with one subfolder per class, or a table with a "
                "label column; for features pass labels."
            )
        position = finder.find(item.label)
        if position is None:
            missing = [other.label for other in items if other.label is not None and finder.find(other.label) is None]
            raise finder.unknown(what, item.id, missing)
        found.append(position)
    return found


def class_names(items: Iterable[ImageItem]) -> list[str]:
    """The class list that labelled images stand for: their labels as they come, `_` read as a space, none twice."""
    names: dict[str, str] = {}
    for item in items:
        if item.label is not None and normal_name(item.label):
            names.setdefault(normal_name(item.label), " ".join(item.label.replace("_", " ").split()))
    return list(names.values())


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
