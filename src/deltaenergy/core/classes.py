"""Class names and prompt templates: read them from a user, check them, fill them in."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated

from deltaenergy.core.specs import fit_type
from deltaenergy.errors import InputError

DEFAULT_TEMPLATE = "a photo of a {}."
TEXT_SUFFIXES = {".txt", ".csv", ".tsv", ".names", ".list", ".json", ".yaml", ".yml"}
# A list of names is far smaller; a larger file is some other one.
LARGEST_FILE = 64 << 20


@dataclass(frozen=True)
class HoldsName:
    """The rule of a template: it has one `{}`, for the class name. `several` of them have bars between."""

    several: bool = False

    def allows(self, text: str) -> bool:
        return _is_text(text) and all(part.count("{}") == 1 for part in (text.split("|") if self.several else [text]))

    def __str__(self) -> str:
        return f"with exactly one {{}} for the class name{' in each part between bars' if self.several else ''}"


Template = Annotated[str, HoldsName()]
Templates = Annotated[str, HoldsName(several=True)]


def check_classes(classes: str | Sequence[str], *, warn: bool = True) -> tuple[str, ...]:
    """The names as a tuple; empty lists and blank names are errors, duplicates a warning (each keeps its column).

    One text with commas is a list: `"dog, cat"`. A name that holds a comma is given in a list.
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
    """One template or an ensemble, each holding exactly one `{}`."""
    if template is not None and templates is not None:
        raise InputError("Pass template or templates, not both.")
    if isinstance(templates, str):
        raise InputError(f"templates must be a list. For one template write template={templates!r}.")
    chosen = (template or DEFAULT_TEMPLATE,) if templates is None else tuple(templates)
    if template == "" or not chosen:
        raise InputError(f"template is empty: pass for example {DEFAULT_TEMPLATE!r}.")
    return tuple(fit_type("template", text, Template) for text in chosen)


def _is_text(text: str) -> bool:
    """Not with halves of surrogate pairs: bytes on a command line that are not UTF-8 become these."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def fill(template: str, name: str) -> str:
    """`template` with `name` in place of its `{}`. Braces inside the name stay as they are."""
    return template.replace("{}", name)


def read_classes(argument: str, what: str = "`classes`") -> list[str]:
    """Class names from one text: `dog,cat`, or a text file with one name per line (blank lines ignored).

    What looks like a path (`./names`, `lists/names`, `names.txt`) must be a file: a misspelt one is no class name. A
    single name with a slash is written as a list, `"tv/monitor,"`. `what` is said in errors.
    """
    path = Path(os.path.expanduser(argument))  # noqa: PTH111 (Path.expanduser raises for an unknown ~user)
    if os.path.isfile(path):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
        return _names_in_file(path, what)
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


def _names_in_file(path: Path, what: str) -> list[str]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{what}: {path} is larger than {LARGEST_FILE >> 20} MiB, which is not a list of names.")
        # utf-8-sig also drops the byte-order mark that some editors write.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what}: {path} cannot be read as UTF-8 text: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(f"{what}: {path} has no class name. Write one name per line.")
    return names


def _like_a_path(text: str, listed: bool = False) -> bool:
    """Whether someone who typed this meant a file. In a list, only what can be nothing else counts."""
    if PurePath(text).suffix.lower() in TEXT_SUFFIXES or text.startswith(("./", "../", "~/", "/")):
        return True
    return not listed and ("/" in text or os.sep in text or text.startswith((".", "~")))
