"""Canonical class names and prompt templates: package data with a hash, made by tools/make_names.py.

The name list alone moves AUROC by points, so there is one list per dataset, and reports print its hash.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import cast

from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files import hash_strings

_FOLDER = resources.files("deltaenergy.data.catalogue") / "names"
_WNID = re.compile(r"(n\d{8})(?:[_\- .].*)?")


@dataclass(frozen=True, slots=True)
class ClassName:
    """A class: what the dataset calls it, what a text encoder gets, and its superclass where there is one."""

    key: str
    name: str
    superclass: str | None = None


@dataclass(frozen=True)
class NameList:
    """The classes of a dataset in canonical order."""

    classes: tuple[ClassName, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """What the dataset calls its classes."""
        return tuple(entry.key for entry in self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """What a text encoder gets."""
        return tuple(entry.name for entry in self.classes)

    @property
    def hash(self) -> str:
        """Identity of the list, for reports."""
        return list_hash((entry.key, entry.name, entry.superclass or "") for entry in self.classes)

    def find(self, text: str) -> ClassName | None:
        """The class that `text` (a folder, a name in a split file) means, or None.

        It is compared with keys, then with names, without regard to case and punctuation; then by its words in any
        order. `n01440764_tench` is `n01440764`.
        """
        match = _WNID.fullmatch(text)
        if match is not None:
            return self._by_key.get(match[1])
        return (
            self._by_key.get(plain_name(text))
            or self._by_name.get(plain_name(text))
            or self._by_words.get(_words(text))
        )

    @functools.cached_property
    def _by_key(self) -> dict[str, ClassName]:
        return {plain_name(entry.key): entry for entry in self.classes}

    @functools.cached_property
    def _by_name(self) -> dict[str, ClassName]:
        return _unambiguous((plain_name(entry.name), entry) for entry in self.classes)

    @functools.cached_property
    def _by_words(self) -> dict[str, ClassName]:
        return _unambiguous((_words(text), entry) for entry in self.classes for text in {entry.name, entry.key})


@functools.cache
def name_list(name: str) -> NameList:
    return read_names(_FOLDER, name)


def read_names(folder: Traversable, name: str) -> NameList:
    """A list of a folder. One that was edited is an error: results made with it would not be comparable."""
    hashes = cast("dict[str, str]", json.loads((folder / "hashes.json").read_text(encoding="utf-8")))
    if name not in hashes:
        raise InputError(f"Unknown name list {name!r}.{did_you_mean(name, hashes)}")
    lines = (folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    found = NameList(tuple(ClassName(row["key"], row["name"], row.get("superclass")) for row in csv.DictReader(lines)))
    if found.hash != hashes[name]:
        raise ArtifactError(
            f"The class names of {name!r} were changed after the package was made (hash {found.hash}, not "
            f"{hashes[name]}). Install the package again, or give your own class names."
        )
    return found


@functools.cache
def template_ensemble(name: str) -> tuple[str, ...]:
    """CLIP's prompt templates for a dataset."""
    ensembles = cast("dict[str, list[str]]", json.loads((_FOLDER / "templates.json").read_text(encoding="utf-8")))
    if name not in ensembles:
        raise InputError(f"Unknown template ensemble {name!r}.{did_you_mean(name, ensembles)}")
    return tuple(ensembles[name])


def list_hash(rows: Iterable[Sequence[str]]) -> str:
    return hash_strings(text for row in rows for text in (*row, "")[:3])


def plain_name(text: str) -> str:
    """The text without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _words(text: str) -> str:
    return " ".join(sorted(re.findall(r"[a-z]+|\d+", text.lower())))


def _unambiguous(entries: Iterable[tuple[str, ClassName]]) -> dict[str, ClassName]:
    """By text, without the texts that mean more than one class."""
    found: dict[str, ClassName | None] = {}
    for text, entry in entries:
        found[text] = entry if found.get(text, entry) is entry else None
    return {text: entry for text, entry in found.items() if entry is not None}
