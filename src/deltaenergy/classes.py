"""Class names and prompt templates: read them from a user, check them, fill them in."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deltaenergy.errors import InputError

DEFAULT_TEMPLATE = "a photo of a {}."


def check_classes(classes: Sequence[str], *, warn: bool = True) -> tuple[str, ...]:
    """The names as a tuple; empty lists and blank names are errors, duplicates a warning (each keeps its column)."""
    if isinstance(classes, str):
        raise InputError(f"classes must be a list of names, not one string. Did you mean [{classes!r}]?")
    names = tuple(classes)
    if not names:
        raise InputError("classes is empty: give at least one class name.")
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise InputError(f"classes[{position}] is {name!r}, not a string.")
        if not name.strip():
            raise InputError(f"classes[{position}] is blank: every class needs a name.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice and warn:
        warnings.warn(
            f"Class names stand more than once and keep separate columns: {', '.join(map(repr, twice))}.",
            stacklevel=3,
        )
    return names


def check_templates(template: str | None, templates: Sequence[str] | None) -> tuple[str, ...]:
    """One template or an ensemble, each holding exactly one `{}`."""
    if template is not None and templates is not None:
        raise InputError("Give template or templates, not both.")
    if isinstance(templates, str):
        raise InputError(f"templates must be a list. For one template write template={templates!r}.")
    chosen = (template or DEFAULT_TEMPLATE,) if templates is None else tuple(templates)
    if template == "" or not chosen:
        raise InputError(f"template is empty: give for example {DEFAULT_TEMPLATE!r}.")
    for text in chosen:
        if text.count("{}") != 1:
            raise InputError(
                f"template {text!r} must hold exactly one {{}} for the class name, as {DEFAULT_TEMPLATE!r} does."
            )
    return chosen


def fill(template: str, name: str) -> str:
    """`template` with `name` in place of its `{}`. Braces inside the name stay as they are."""
    return template.replace("{}", name)


def read_classes(argument: str) -> list[str]:
    """Class names from the command line: `dog,cat`, or a text file with one name per line (blank lines ignored)."""
    path = Path(argument)
    try:
        is_file = path.is_file()
    except OSError:  # a long comma list is no valid file name
        is_file = False
    if is_file:
        try:
            # utf-8-sig also drops the byte-order mark that some editors write.
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--classes: {path} cannot be read as UTF-8 text: {error}") from error
        names = [line.strip() for line in lines if line.strip()]
        if not names:
            raise InputError(f"--classes: {path} holds no class name. Write one name per line.")
        return names
    if path.suffix in {".txt", ".csv", ".names"}:
        raise InputError(f"--classes: the file {path} does not exist.")
    names = [name.strip() for name in argument.split(",") if name.strip()]
    if not names:
        raise InputError('--classes is empty. Write for example --classes "dog,cat", or name a file.')
    return names
