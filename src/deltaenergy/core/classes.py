"""Class names, prompt templates and labels: read names from a user, check them, fill them in, find labels among them.

A label is a folder's name, a cell of a table, or typed text. It means the class of exactly that name if there is one,
else the first class that differs only in case, `_`, `-`, accents' encoding or spaces.
"""

from __future__ import annotations

import difflib
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

from deltaenergy.core.specs import fit_type
from deltaenergy.core.text import listed
from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.data.items import ImageItem

DEFAULT_TEMPLATE = "a photo of a {}."
TEXT_SUFFIXES = {".txt", ".csv", ".tsv", ".names", ".list", ".json", ".yaml", ".yml"}
# A list of names is far smaller; a larger file is something else.
LARGEST_FILE = 64 << 20
# A longer class list would bury the message.
MOST_SHOWN = 50


@dataclass(frozen=True)
class HoldsName:
    """The rule of a template: it has one `{}`, for the class name. `several` are separated by bars."""

    several: bool = False

    def allows(self, text: str) -> bool:
        return _is_text(text) and all(part.count("{}") == 1 for part in (text.split("|") if self.several else [text]))

    def __str__(self) -> str:
        return f"with exactly one {{}} for the class name{' in each part between bars' if self.several else ''}"


Template = Annotated[str, HoldsName()]
Templates = Annotated[str, HoldsName(several=True)]


def check_classes(classes: str | Sequence[str], *, warn: bool = True) -> tuple[str, ...]:
    """The names as a tuple; empty lists and blank names are errors, duplicates a warning (each keeps its column).

    A string with commas is a list: `"dog, cat"`. Pass a name that contains a comma in a list.
    """
    if isinstance(classes, str):
        if "," not in classes and classes.strip():
            raise InputError(
                f"classes must be a list of names, or one text with commas. Did you mean [{classes!r}]? "
                "Names in a file: deltaenergy.ClassNames(FILE)."
            )
        classes = [name.strip() for name in classes.split(",") if name.strip()]
    try:
        names = tuple(classes)
    except TypeError:
        raise InputError(f"classes must be a list of names, not {type(classes).__name__}.") from None
    if not names:
        raise InputError("classes is empty: pass at least one class name.")
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise InputError(f"classes[{position}] is {name!r}, not a string.")
        if not name.strip():
            raise InputError(f"classes[{position}] is blank: every class needs a name.")
        if not _is_text(name):
            raise InputError(f"classes[{position}] is {name!r}, which is not text: it has bytes that are not UTF-8.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice and warn:
        warnings.warn(
            f"Duplicate class names, kept as separate columns: {', '.join(map(repr, twice))}.",
            stacklevel=3,
        )
    return names


def check_templates(template: str | None, templates: Sequence[str] | None) -> tuple[str, ...]:
    """One template or an ensemble, each with exactly one `{}`."""
    if template is not None and templates is not None:
        raise InputError("Pass template or templates, not both.")
    if isinstance(templates, str):
        raise InputError(f"templates must be a list. For one template write template={templates!r}.")
    chosen = (template or DEFAULT_TEMPLATE,) if templates is None else tuple(templates)
    if template == "" or not chosen:
        raise InputError(f"template is empty: pass for example {DEFAULT_TEMPLATE!r}.")
    return tuple(fit_type("template", text, Template) for text in chosen)


def _is_text(text: str) -> bool:
    """No halves of surrogate pairs: they come from bytes on a command line that are not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def fill(template: str, name: str) -> str:
    """`template` with `name` for its `{}`. Braces inside the name stay as they are."""
    return template.replace("{}", name)


def read_classes(argument: str, what: str = "`classes`") -> list[str]:
    """Class names from one text: `dog,cat`, or a text file with one name per line (blank lines ignored).

    Text that looks like a path (`./names`, `lists/names`, `names.txt`) must be a file. Write a single name with a slash
    as a list, `"tv/monitor,"`. `what` names it in errors.
    """
    path = Path(os.path.expanduser(argument))  # noqa: PTH111 (Path.expanduser raises for an unknown ~user)
    if os.path.isfile(path):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
        return names_in_file(path, what)
    if os.path.lexists(path) and _like_a_path(argument):
        kind = "a folder" if os.path.isdir(path) else "not an ordinary file"  # noqa: PTH112
        raise InputError(f"{what}: {argument} is {kind}. Pass a text file with one name per line.")
    names = [name.strip() for name in argument.split(",") if name.strip()]
    if not names:
        raise InputError(f'{what} is empty. Write for example "dog,cat", or name a file.')
    listed = "," in argument
    for name in names:
        if _like_a_path(name, listed):
            hint = "" if listed else f' For a class of that name write "{name},".'
            raise InputError(f"{what}: the file {name} does not exist.{hint}")
    return names


def names_in_file(path: Path, what: str) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{what}: {path} is larger than {LARGEST_FILE >> 20} MiB, which is not a list of names.")
        # utf-8-sig also drops the byte-order mark that some editors write.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"{what}: the file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what}: {path} cannot be read as UTF-8 text: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(f"{what}: {path} has no name. Write one name per line.")
    return names


def _like_a_path(text: str, listed: bool = False) -> bool:
    """Whether the text looks like a file. In a list, only clear cases count."""
    if PurePath(text).suffix.lower() in TEXT_SUFFIXES or text.startswith(("./", "../", "~/", "/")):
        return True
    return not listed and ("/" in text or os.sep in text or text.startswith((".", "~")))


def normal_name(name: str) -> str:
    """A class or folder name for comparison: case, `_`, `-` and repeated spaces do not matter."""
    plain = unicodedata.normalize("NFC", name).casefold()
    return " ".join(plain.replace("_", " ").replace("-", " ").split())


def first_of_name(classes: Sequence[str]) -> list[int]:
    """For each class the first position with the same name, so duplicates count as one class."""
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
        """The error for labels (one per image) that are not a class; `image` is the first such image."""
        counts = Counter(labels)
        first = next(iter(counts))
        others = [repr(label) for label in counts if label != first]
        more = f" Neither are {listed(others)}." if others else ""
        return InputError(
            f"{what}: {image} is of class {first!r}, which is not among the {len(self.classes)} classes."
            f"{self.near(first)}{more} Add the class, rename the folder, or remove the images ({counts.total()} in "
            "all)."
        )

    def near(self, label: str) -> str:
        """The end of a message on an unknown label: the nearest names, and all of them if they are few."""
        if len(self.classes) <= MOST_SHOWN:
            return did_you_mean(normal_name(label), self.classes)
        near = difflib.get_close_matches(normal_name(label), self.classes, n=2)
        return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def class_indices(items: Sequence[ImageItem], classes: Sequence[str], what: str) -> list[int]:
    """The position of each image's class. Images without a label, or with an unknown label, are an error that starts
    with `what`.

    Unreadable items without a label, such as a broken link, have position −1.
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
    """The class list of labelled images: their distinct labels in order, with `_` read as a space."""
    names: dict[str, str] = {}
    for item in items:
        if item.label is not None and normal_name(item.label):
            names.setdefault(normal_name(item.label), " ".join(item.label.replace("_", " ").split()))
    return list(names.values())
