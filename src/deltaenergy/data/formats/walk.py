"""The one walk through a user's folders: in sorted order, through links but never in circles, past nothing in silence.

Only names are read: an entry's type comes with the listing, and only symbolic links cost a look. Of files without a
suffix the first bytes show whether they are images. What should be an image and cannot be read (a broken link, a named
pipe, a folder without permission) is given with the reason, so it is listed as unreadable and everything else is done.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from deltaenergy.data.decode import EXTENSIONS, begins_as_image
from deltaenergy.data.file import LocalFile, what_it_is, why_not_reached
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError

# Links among folders can make n! ways through n folders. No tree that a person made needs a folder more often.
MOST_LINKS_TO_A_FOLDER = 16


class EntryKind(Enum):
    """What an entry of a folder is to us.

    UNREADABLE has an image's name but is not a file that can be opened; CLOSED is a folder that cannot be listed, or a
    link that leads nowhere and may have led to a folder. OTHER files are not images.
    """

    FOLDER = "folder"
    IMAGE = "image"
    UNREADABLE = "unreadable"
    CLOSED = "closed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder; what is UNREADABLE or CLOSED comes with the reason."""

    path: Path
    kind: EntryKind
    linked: bool = False
    problem: str | None = None

    def item(self, label: str | None = None, domain: str | None = None) -> ImageItem:
        """The entry as an image, or as one that cannot be read."""
        return ImageItem(self.path.as_posix(), LocalFile(self.path), label, domain, self.problem)


def walk(folder: Path, *, strict: bool = True) -> Iterator[Entry]:
    """Every image below `folder`, and every problem, sorted by path.

    If `folder` itself cannot be listed, that is an `InputError`; without `strict` it is the one problem given.
    """
    return (
        entry for entry in tree(folder, strict=strict) if entry.kind is EntryKind.IMAGE or entry.problem is not None
    )


def tree(folder: Path, *, strict: bool = True) -> Iterator[Entry]:
    """Everything below `folder`, each folder before what is in it.

    A link to a folder that is being walked is not followed, and nothing is lost by that. A folder that cannot be
    listed comes once more, as CLOSED.
    """
    first = list_folder(folder) if strict else list_or_problem(folder)
    followed: Counter[Path] = Counter()
    # For each folder that is open: what is still to come of it, and the real places of the links that led to it.
    waiting: list[tuple[Path, Iterator[Entry], tuple[Path, ...]]] = [(folder, iter(first), ())]
    while waiting:
        above, entries, trail = waiting[-1]
        entry = next(entries, None)
        if entry is None:
            waiting.pop()
            continue
        if entry.kind is EntryKind.FOLDER and entry.linked:
            target, here = _real(entry.path), (*trail, _real(above))
            if any(place.is_relative_to(target) for place in here):
                continue
            followed[target] += 1
            if followed[target] > MOST_LINKS_TO_A_FOLDER:
                reason = f"a link to a folder that {MOST_LINKS_TO_A_FOLDER} links led to already"
                yield Entry(entry.path, EntryKind.CLOSED, True, reason)
                continue
            trail = here
        yield entry
        if entry.kind is EntryKind.FOLDER:
            waiting.append((entry.path, iter(list_or_problem(entry.path)), trail))


def list_folder(folder: Path, *, hidden: bool = False) -> list[Entry]:
    """The entries of `folder`, sorted; names that begin with a dot only if `hidden`. Raises `InputError`."""
    try:
        return _list(folder, hidden)
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be listed: {error.strerror}.") from error


def list_or_problem(folder: Path, *, hidden: bool = False) -> list[Entry]:
    """The entries of `folder`; if it cannot be listed, that alone."""
    try:
        return _list(folder, hidden)
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else (error.strerror or str(error)).lower()
        return [Entry(folder, EntryKind.CLOSED, problem=f"the folder cannot be listed: {why}")]


def look_at(path: Path) -> Entry | None:
    """What is at `path`, None if nothing is."""
    linked = os.path.islink(path)  # noqa: PTH114 (answers where Path raises)
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except (OSError, ValueError) as error:
        return _out_of_reach(path, error, linked) if linked or isinstance(error, PermissionError) else None
    return _of_mode(path, mode, linked)


def is_image_name(name: str) -> bool:
    """Whether a file of this name counts as an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS  # noqa: PTH122 (a Path per name is slow)


def _is_nameless_image(path: Path) -> bool:
    """Whether a regular file without an ending begins as images do."""
    if os.path.splitext(path.name)[1]:  # noqa: PTH122
        return False
    try:
        with path.open("rb", buffering=0) as file:
            return begins_as_image(file.read(12))
    except OSError:
        return False


def _list(folder: Path, hidden: bool) -> list[Entry]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if hidden or not entry.name.startswith(".")]
    visible.sort(key=lambda entry: entry.name)
    return [_look(folder / entry.name, entry) for entry in visible]


def _look(path: Path, entry: os.DirEntry[str]) -> Entry:
    try:
        if entry.is_symlink():
            return _of_mode(path, os.stat(path).st_mode, linked=True)  # noqa: PTH116
        if entry.is_dir(follow_symlinks=False):
            return Entry(path, EntryKind.FOLDER)
        if entry.is_file(follow_symlinks=False):
            return _of_file(path, linked=False)
        return _of_mode(path, entry.stat(follow_symlinks=False).st_mode, linked=False)
    except OSError as error:
        return _out_of_reach(path, error, entry.is_symlink())


def _of_mode(path: Path, mode: int, linked: bool) -> Entry:
    if stat.S_ISDIR(mode):
        return Entry(path, EntryKind.FOLDER, linked)
    if stat.S_ISREG(mode):
        return _of_file(path, linked)
    if not is_image_name(path.name):
        return Entry(path, EntryKind.OTHER, linked)
    return Entry(path, EntryKind.UNREADABLE, linked, what_it_is(mode))


def _of_file(path: Path, linked: bool) -> Entry:
    is_image = is_image_name(path.name) or _is_nameless_image(path)
    return Entry(path, EntryKind.IMAGE if is_image else EntryKind.OTHER, linked)


def _out_of_reach(path: Path, error: OSError | ValueError, linked: bool) -> Entry:
    kind = EntryKind.UNREADABLE if is_image_name(path.name) else EntryKind.CLOSED
    return Entry(path, kind, linked, why_not_reached(path, error))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
