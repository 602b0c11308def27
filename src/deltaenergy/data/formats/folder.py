"""Images at local paths: files, folders (flat, one folder per class, or one per domain with one per class inside) and
patterns such as `photos/**/*.png`.

`*`, `?` and `[…]` match inside a name, `**` any number of folders. As in a shell, a name that begins with a dot is
matched only by a pattern that does. Unlike Python's glob, linked folders do not lead in circles, and a folder that
cannot be listed is reported. `{000..999}` and `{train,test}` stand for every number or word; each must be there.

Only names are read, never the files, so 100,000 images are listed in a moment.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.data.file import LocalFile, is_folder, user_path
from deltaenergy.data.formats.files import CONTAINERS, SHARDS, file_images, found_images
from deltaenergy.data.formats.table import TABLE_EXTENSIONS
from deltaenergy.data.formats.tar import TAR_EXTENSIONS
from deltaenergy.data.formats.walk import Entry, EntryKind, list_folder, list_or_problem, look_at, tree, walk
from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import OtherFiles
from deltaenergy.errors import InputError

_BRACES = re.compile(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}")
MOST_NAMES = 1_000_000


def path_images(
    text: str, list_store: Callable[[Path], Iterator[ImageItem] | None], others: OtherFiles, *, alone: bool
) -> Iterator[ImageItem]:
    """The images of a path or pattern; one given `alone` must be there.

    Whether it is there is looked at now, what it contains as it is gone through.

    Args:
        text: the path or pattern.
        list_store: gives the images of a folder that is a feature store, None for other folders.
        others: counts files in folders that are not images.
        alone: whether nothing else was given. A missing file in a list is unreadable when its turn comes.
    """
    path = user_path(text)
    # A listed name with an image's suffix needs no look at the disk: opening it later tells all there is to know.
    if not alone and not glob.has_magic(text) and path.suffix.lower() in EXTENSIONS:
        return iter([ImageItem(path.as_posix(), LocalFile(path))])
    if is_folder(path):
        stored = list_store(path)
        return _folder_images(path, others) if stored is None else stored
    # lexists: a broken link exists, and is then reported as unreadable. Names may hold [ and ], so exact ones go first.
    if os.path.lexists(path):
        return file_images(LocalFile(path))
    if len(names := braces(text)) > 1:
        return chain.from_iterable([path_images(name, list_store, others, alone=True) for name in names])
    if glob.has_magic(text):
        return _pattern_images(path, others, alone)
    if alone or path.suffix.lower() in CONTAINERS:
        raise _does_not_exist(path)
    return iter([ImageItem(path.as_posix(), LocalFile(path))])


def _folder_images(folder: Path, others: OtherFiles) -> Iterator[ImageItem]:
    """The images in a folder; of one that has none, those in its archives and Parquet files."""
    has_images = has_problems = False
    shards: list[Path] = []
    for entry in tree(folder):
        if entry.kind is EntryKind.IMAGE or entry.problem is not None:
            has_images |= entry.kind is not EntryKind.CLOSED
            has_problems = True
            yield entry.item(_label(entry, folder))
        elif entry.kind is EntryKind.OTHER and entry.path.suffix.lower() in SHARDS:
            shards.append(entry.path)
        elif entry.kind is EntryKind.OTHER:
            others.add(str(entry.path))
    for path in shards:
        if has_images:
            others.add(str(path))
        else:
            yield from found_images(LocalFile(path))
    if not shards and not has_problems:
        raise _no_images(folder)


def _pattern_images(pattern: Path, others: OtherFiles, alone: bool) -> Iterator[ImageItem]:
    """What a pattern matches: image files, the images in folders, archives, and tables if it asks for their suffix."""
    entries = _matches(pattern)
    if not entries:
        if alone:
            raise InputError(f"No file matches the pattern {str(pattern)!r}.")
        yield ImageItem(pattern.as_posix(), LocalFile(pattern))
        return
    # A pattern with ** matches a folder and the files in it as well: each path counts once.
    found: dict[Path, Entry] = {}
    containers: list[Path] = []
    wanted = TAR_EXTENSIONS | ({pattern.suffix.lower()} & TABLE_EXTENSIONS)
    for entry in entries:
        if entry.kind is EntryKind.FOLDER:
            found.update((inside.path, inside) for inside in walk(entry.path, strict=False))
        elif entry.kind is not EntryKind.OTHER:
            found[entry.path] = entry
        elif entry.path.suffix.lower() in wanted:
            containers.append(entry.path)
        else:
            others.add(str(entry.path))
    if not found and not containers:
        raise InputError(f"The pattern {str(pattern)!r} matches {str(entries[0].path)!r}, but no image.")
    for entry in found.values():
        yield entry.item()
    for path in containers:
        yield from found_images(LocalFile(path))


def local_folders(path: str | os.PathLike[str], domains: bool = False) -> list[ImageItem]:
    """The images of local class folders, as `labelled_folders` gives them."""
    root = _existing_folder(path)
    if not domains:
        return _class_folders(root, list_folder(root), None)
    items: list[ImageItem] = []
    for domain in _subfolders(root, list_folder(root), "domain"):
        inside = list_or_problem(domain.path) if domain.problem is None else [domain]
        items += _class_folders(domain.path, inside, domain.path.name)
    return items


def _existing_folder(path: str | os.PathLike[str]) -> Path:
    """`path` as a folder that exists, or an error with the nearest name."""
    folder = user_path(path)
    # The functions of os.path, unlike those of Path, answer "no" for names that the system refuses.
    if not os.path.lexists(folder):
        raise _does_not_exist(folder)
    if not is_folder(folder):
        raise InputError(f"{str(folder)!r} is a file, but a folder with one subfolder per class is needed.")
    return folder


def _does_not_exist(path: Path) -> InputError:
    """The error for a path that is not there: it names the first missing part and the names next to it."""
    missing = path
    while not os.path.exists(missing.parent):  # noqa: PTH110 (Path.exists raises for names that are too long)
        missing = missing.parent
    if not os.access(missing.parent, os.X_OK):
        return InputError(f"{str(path)!r} cannot be reached: no permission to look into {str(missing.parent)!r}.")
    try:
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, 10_000)]
    except OSError:
        names = []
    same = [name for name in names if name.lower() == missing.name.lower()]
    # Names are compared without their ending: .jpg alone makes no two names alike. Of equal stems, the one with the
    # wanted ending is kept.
    names.sort(key=lambda name: (Path(name).suffix.lower() == missing.suffix.lower(), name))
    by_stem = {Path(name).stem.lower(): name for name in names}
    matches = difflib.get_close_matches(missing.stem.lower(), by_stem, n=2, cutoff=0.65)
    near = same or [by_stem[match] for match in matches]
    hint = f" Did you mean {' or '.join(repr(str(missing.parent / name)) for name in near)}?" if near else ""
    where = f" ({str(missing)!r} is missing already)" if missing != path else ""
    return InputError(f"{str(path)!r} does not exist{where}.{hint}")


def _class_folders(root: Path, entries: list[Entry], domain: str | None) -> list[ImageItem]:
    if [entry.path for entry in entries] == [root]:  # the folder itself cannot be listed
        return [entry.item(None, domain) for entry in entries]
    items: list[ImageItem] = []
    for folder in _subfolders(root, entries, "class"):
        found = [folder] if folder.problem is not None else list(walk(folder.path, strict=False))
        if not found:
            raise InputError(f"The class folder {str(folder.path)!r} holds no image. Add some, or remove the folder.")
        label = None if folder.problem is not None else folder.path.name
        items += [entry.item(label, domain) for entry in found]
    return items


def _subfolders(root: Path, entries: list[Entry], kind: str) -> list[Entry]:
    """The folders among the entries of `root`, one per class or domain; an error if there are none, or images beside.

    A link that leads nowhere may have led to one.
    """
    folders = [entry for entry in entries if entry.kind in (EntryKind.FOLDER, EntryKind.CLOSED)]
    loose = [entry.path.name for entry in entries if entry.kind in (EntryKind.IMAGE, EntryKind.UNREADABLE)]
    if not folders:
        found = f"{len(loose)} image(s) but no folders" if loose else "no folders"
        raise InputError(f"{str(root)!r} holds {found}. It must hold one folder per {kind}, with the images inside.")
    if loose:
        raise InputError(
            f"{len(loose)} image(s) lie directly in {str(root)!r}, outside its {kind} folders, the first is "
            f"{loose[0]!r}. Move them into a {kind} folder."
        )
    return folders


def _no_images(folder: Path) -> InputError:
    """The error for a folder without images: it says what is in it instead."""
    others = [entry.path.name for entry in list_folder(folder)]
    what = f"{len(others)} other entries, such as {others[0]!r}" if others else "it is empty"
    return InputError(f"No images in {str(folder)!r} ({what}). Image files end in .jpg, .png, .webp, ….")


def _label(entry: Entry, root: Path) -> str | None:
    """The label of an image below `root`: the name of the folder that it lies in, None in `root` itself.

    A folder that cannot be listed stands for the images in it. A link that leads nowhere may have been anything.
    """
    folder = entry.path if entry.kind is EntryKind.CLOSED and not entry.linked else entry.path.parent
    return None if folder == root else folder.name


def braces(text: str) -> list[str]:
    """The names that a text with braces stands for, as in a shell; a text without stands for itself."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    first, last, words = match.groups()
    if words is not None:
        choices = words.split(",")
    else:
        low, high = int(first), int(last)
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        step = 1 if low <= high else -1
        if abs(high - low) >= MOST_NAMES:
            raise InputError(f"{match[0]!r} in {text!r} stands for more than {MOST_NAMES:,} names.")
        choices = [f"{number:0{width}}" for number in range(low, high + step, step)]
    ends = braces(text[match.end() :])
    if len(choices) * len(ends) > MOST_NAMES:
        raise InputError(f"The braces in {text!r} stand for more than {MOST_NAMES:,} names.")
    return [text[: match.start()] + choice + end for choice in choices for end in ends]


def _matches(pattern: Path) -> list[Entry]:
    """What is there and matches, and every problem on the way, sorted by path."""
    root = Path(pattern.anchor)
    found = {entry.path: entry for entry in _expand(root, pattern.parts[1:] if pattern.anchor else pattern.parts)}
    return sorted(found.values(), key=lambda entry: str(entry.path))


def _expand(folder: Path, parts: tuple[str, ...]) -> Iterator[Entry]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _at_any_depth(folder, rest)
        return
    if not glob.has_magic(part):
        entry = look_at(folder / part)
        candidates = [] if entry is None else [entry]
    else:
        entries = list_or_problem(folder, hidden=part.startswith("."))
        candidates = [entry for entry in entries if entry.path == folder or fnmatch.fnmatch(entry.path.name, part)]
    for entry in candidates:
        if not rest or entry.kind is EntryKind.CLOSED:
            yield entry
        elif entry.kind is EntryKind.FOLDER:
            yield from _expand(entry.path, rest)


def _at_any_depth(folder: Path, rest: tuple[str, ...]) -> Iterator[Entry]:
    while rest and rest[0] == "**":
        rest = rest[1:]
    if rest:
        yield from _expand(folder, rest)
    elif (itself := look_at(folder)) is not None:
        yield itself
    for entry in tree(folder, strict=False):
        if not rest or entry.kind is EntryKind.CLOSED:
            yield entry
        elif entry.kind is EntryKind.FOLDER:
            yield from _expand(entry.path, rest)
