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

    An IMAGE has the name of one, or begins as one, and may still be something that cannot be opened. CLOSED is a folder
    that cannot be listed, or a link that leads nowhere and may have led to a folder. OTHER files are not images.
    """

    FOLDER = "folder"
    IMAGE = "image"
    CLOSED = "closed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One entry of a folder, here or at a URL; what cannot be read has a `problem`.

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
        """Whether it is an image, or may have some and cannot be read."""
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
    first = list_folder(folder, hidden=hidden)
    if strict and first and first[0].path == folder:
        raise InputError(f"{str(folder)!r} cannot be read: {first[0].problem}.")
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
            target, here = Path(os.path.realpath(entry.path)), (*trail, Path(os.path.realpath(above)))
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
            inside = list_folder(entry.path, entry.parts, hidden=hidden)
            waiting.append((entry.path, iter(inside), trail))


def folders_in(folder: Path) -> list[Path]:
    """The folders in `folder`, sorted, also those whose names begin with a dot. Raises `InputError`."""
    entries = tree(folder, hidden=True, enter=lambda parts: False)
    return [entry.path for entry in entries if entry.kind is EntryKind.FOLDER]


def list_folder(folder: Path, parts: tuple[str, ...] = (), *, hidden: bool = False) -> list[FolderEntry]:
    """The entries of `folder`, whose own parts these are, sorted; if it cannot be listed, only that, as CLOSED."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if hidden or not entry.name.startswith(".")]
        visible.sort(key=lambda entry: entry.name)
        return [_look(folder / entry.name, (*parts, entry.name), entry) for entry in visible]
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else (error.strerror or str(error)).lower()
        return [FolderEntry(LocalFile(folder), EntryKind.CLOSED, parts, problem=f"the folder cannot be listed: {why}")]


def _look(path: Path, parts: tuple[str, ...], entry: os.DirEntry[str]) -> FolderEntry:
    suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 (a Path per name is slow)
    is_named, linked = suffix in EXTENSIONS, entry.is_symlink()
    problem: str | None = None
    try:
        if entry.is_dir():
            kind = EntryKind.FOLDER
        elif entry.is_file():
            kind = EntryKind.IMAGE if is_named or (not suffix and _begins_as_image(path)) else EntryKind.OTHER
        else:
            mode = os.stat(path).st_mode  # noqa: PTH116 (an error for a link that leads nowhere)
            kind = EntryKind.IMAGE if is_named else EntryKind.OTHER
            problem = what_it_is(mode) if is_named else None
    except OSError as error:
        kind, problem = EntryKind.IMAGE if is_named else EntryKind.CLOSED, why_not_reached(path, error)
    return FolderEntry(LocalFile(path), kind, parts, linked, problem)


def _begins_as_image(path: Path) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            return begins_as_image(file.read(12))
    except OSError:
        return False
