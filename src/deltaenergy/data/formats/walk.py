"""The one walk through a user's folders: in sorted order, through links but never in circles, past nothing in silence.

Only names are read: an entry's type comes with the listing, and only symbolic links cost a look. Of files without a
suffix the first bytes show whether they are images. What should be an image and cannot be read (a broken link, a named
pipe, a folder without permission) is given with the reason, so it is listed as unreadable and everything else is done.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from deltaenergy.data.decode import EXTENSIONS, begins_as_image
from deltaenergy.data.file import File, LocalFile, what_it_is, why_not_reached
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
class FolderEntry:
    """One entry of a folder, here or at a URL; what is UNREADABLE or CLOSED comes with the reason.

    `parts` is its name below the folder that was walked.
    """

    file: File
    kind: EntryKind
    parts: tuple[str, ...] = ()
    linked: bool = False
    problem: str | None = None

    @property
    def path(self) -> Path:
        assert isinstance(self.file, LocalFile)
        return self.file.path

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that it is in. One that cannot be listed stands for the images in it, a broken link for any."""
        return self.parts if self.kind is EntryKind.CLOSED and not self.linked else self.parts[:-1]

    @property
    def is_listed(self) -> bool:
        """Whether it is an image, or something that should be and cannot be read."""
        return self.kind is EntryKind.IMAGE or self.problem is not None

    def item(self, label: str | None = None, domain: str | None = None) -> ImageItem:
        return ImageItem(self.file.name, self.file, label, domain, self.problem)


def walk(folder: Path) -> Iterator[FolderEntry]:
    """Every image below `folder`, and every problem, sorted by path."""
    return (entry for entry in tree(folder, strict=False) if entry.is_listed)


def tree(
    folder: Path,
    *,
    strict: bool = True,
    hidden: bool = False,
    enter: Callable[[tuple[str, ...]], bool] = lambda parts: True,
) -> Iterator[FolderEntry]:
    """Everything below `folder`, each folder before what is in it.

    A link to a folder that is being walked is not followed, and nothing is lost by that. A folder that cannot be
    listed comes once more, as CLOSED; the first one is an `InputError` if `strict`. Names that begin with a dot are
    given if `hidden`; `enter` says by its parts whether to look into a folder.
    """
    first = list_folder(folder, hidden=hidden) if strict else list_or_problem(folder, hidden=hidden)
    followed: Counter[Path] = Counter()
    # For each folder that is open: what is still to come of it, and the real places of the links that led to it.
    waiting: list[tuple[Path, Iterator[FolderEntry], tuple[Path, ...]]] = [(folder, iter(first), ())]
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
                yield replace(entry, kind=EntryKind.CLOSED, problem=reason)
                continue
            trail = here
        yield entry
        if entry.kind is EntryKind.FOLDER and enter(entry.parts):
            inside = list_or_problem(entry.path, entry.parts, hidden=hidden)
            waiting.append((entry.path, iter(inside), trail))


def list_folder(folder: Path, *, hidden: bool = False) -> list[FolderEntry]:
    """The entries of `folder`, sorted; names that begin with a dot only if `hidden`. Raises `InputError`."""
    try:
        return _list(folder, (), hidden)
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be listed: {error.strerror}.") from error


def list_or_problem(folder: Path, parts: tuple[str, ...] = (), *, hidden: bool = False) -> list[FolderEntry]:
    """The entries of `folder`, whose own parts these are; if it cannot be listed, only that."""
    try:
        return _list(folder, parts, hidden)
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else (error.strerror or str(error)).lower()
        return [FolderEntry(LocalFile(folder), EntryKind.CLOSED, parts, problem=f"the folder cannot be listed: {why}")]


def is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS  # noqa: PTH122 (a Path per name is slow)


def _is_nameless_image(path: Path) -> bool:
    """Whether a regular file without a suffix begins as images do."""
    if os.path.splitext(path.name)[1]:  # noqa: PTH122
        return False
    try:
        with path.open("rb", buffering=0) as file:
            return begins_as_image(file.read(12))
    except OSError:
        return False


def _list(folder: Path, parts: tuple[str, ...], hidden: bool) -> list[FolderEntry]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if hidden or not entry.name.startswith(".")]
    visible.sort(key=lambda entry: entry.name)
    return [_look(folder / entry.name, (*parts, entry.name), entry) for entry in visible]


def _look(path: Path, parts: tuple[str, ...], entry: os.DirEntry[str]) -> FolderEntry:
    problem, linked = None, entry.is_symlink()
    try:
        if entry.is_dir():
            kind = EntryKind.FOLDER
        elif entry.is_file():
            kind = _kind_of_file(path)
        else:
            mode, kind = os.stat(path).st_mode, EntryKind.OTHER  # noqa: PTH116 (an error for a link that leads nowhere)
            if is_image_name(path.name):
                kind, problem = EntryKind.UNREADABLE, what_it_is(mode)
    except OSError as error:
        kind = EntryKind.UNREADABLE if is_image_name(path.name) else EntryKind.CLOSED
        problem = why_not_reached(path, error)
    return FolderEntry(LocalFile(path), kind, parts, linked, problem)


def _kind_of_file(path: Path) -> EntryKind:
    return EntryKind.IMAGE if is_image_name(path.name) or _is_nameless_image(path) else EntryKind.OTHER


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
