"""Which file goes where: one folder per verdict and class, names that every file system takes, and none twice."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.errors import InputError

# What some file system refuses in a name, what steers a terminal, and what turns text round.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)")
LONGEST_FOLDER, LONGEST_FILE = 120, 255


class How(StrEnum):
    """What is done with a file."""

    COPY = "copy"
    LINK = "link"
    MOVE = "move"


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture's file and its verdict."""

    source: Path
    label: str
    is_ood: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """A file, and where it goes."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Left:
    """A file that stays where it is, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that is going to be done. `made` are the folders that do not exist yet, parents first."""

    folder: Path
    how: How
    placements: list[Placement]
    left: list[Left] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)


def plan_sorting(entries: Iterable[Entry], folder: str | Path, how: How) -> Plan:
    """Find a place for every file, and change nothing.

    A name that is taken gets a number, `cat (2).jpg`; upper and lower case count as the same, since they are on some
    disks. A file that stands in `entries` twice is placed once. A link is not moved: it would lead elsewhere.
    """
    root = Path(os.path.abspath(folder))  # noqa: PTH100 (links stay as the user wrote them)
    names = _FolderNames()
    taken: dict[Path, set[str]] = {}
    placements: list[Placement] = []
    left: list[Left] = []
    seen: set[str] = set()
    for entry in entries:
        source = Path(os.path.abspath(entry.source))  # noqa: PTH100
        if str(source) in seen:
            continue
        seen.add(str(source))
        if how is How.MOVE and source.is_symlink():
            left.append(Left(source, "it is a link, and links are not moved"))
            continue
        place = root / NONE_OF_THESE if entry.is_ood else root / KNOWN / names.of(entry.label)
        if place not in taken:
            taken[place] = {_same(name) for name in _listed(place)}
        placements.append(Placement(source, place / _free_name(source.name, taken[place])))
    parents = {parent for one in placements for parent in one.target.parents if parent.is_relative_to(root)}
    made = [place for place in sorted(parents | set(root.parents)) if placements and not place.exists()]
    return Plan(root, how, placements, left, made)


def refuse_inside(folder: str | Path, sources: Iterable[str | Path], option: str) -> None:
    """Raise `InputError` if `folder` is, or lies in, a folder that pictures are read from."""
    target = Path(os.path.realpath(folder))
    for source in sources:
        place = Path(os.path.realpath(source))
        if place.is_dir() and target.is_relative_to(place):
            where = "is the folder" if target == place else f"lies in {source},"
            raise InputError(
                f"{option} {folder} {where} that the pictures are read from: the next run would read the sorted ones "
                "again. Choose a folder beside it."
            )


def safe_folder(label: str) -> str:
    """A class name as the name of a folder, on any system.

    >>> safe_folder("AC/DC: live?")
    'AC_DC_ live_'
    """
    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", label)).strip(" .")
    if _RESERVED.match(name):
        name = f"_{name}"
    return _cut(name, LONGEST_FOLDER).rstrip(" .") or "_"


class _FolderNames:
    """A folder of its own for every class, even where two names come out alike."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, label: str) -> str:
        if label not in self._of:
            self._of[label] = _free_name(safe_folder(label), self._taken, LONGEST_FOLDER + 8, whole=True)
        return self._of[label]


def _free_name(name: str, taken: set[str], longest: int = LONGEST_FILE, *, whole: bool = False) -> str:
    """`name`, or with the first number that makes it new; it is then taken."""
    stem, ending = (name, "") if whole else os.path.splitext(name)  # noqa: PTH122 (surrogates stay)
    number, free = 1, name
    while _same(free) in taken:
        number += 1
        mark = f" ({number}){ending}"
        free = _cut(stem, longest - len(os.fsencode(mark))) + mark
    taken.add(_same(free))
    return free


def _same(name: str) -> str:
    """What two names share if some file system takes them for one."""
    return unicodedata.normalize("NFC", name).casefold()


def _cut(text: str, size: int) -> str:
    """`text` in at most `size` bytes, cut between letters."""
    while len(text.encode("utf-8", "surrogateescape")) > size:
        text = text[:-1]
    return text


def _listed(place: Path) -> list[str]:
    try:
        return [entry.name for entry in place.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise InputError(f"{place} is a file, where a folder is needed. Choose another folder to sort into.") from None
