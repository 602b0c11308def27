"""Images in folders: flat, one folder per class, or one folder per domain with one per class inside.

Only names are read, never the files, so that 100,000 images are listed in a moment.
"""

from __future__ import annotations

import difflib
import os
from itertools import islice
from pathlib import Path

from deltaenergy.data.formats.walk import EntryKind, Listed, list_folder, list_or_problem, walk
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import is_folder, user_path
from deltaenergy.data.remote.listing import remote_folders
from deltaenergy.data.remote.url import is_url
from deltaenergy.errors import InputError


def folder_label(entry: Listed, root: Path) -> str | None:
    """The label of an image below `root`: the name of the folder that it lies in, None in `root` itself.

    A folder that cannot be listed stands for the images in it. A link that leads nowhere may have been anything.
    """
    folder = entry.path if entry.kind is EntryKind.CLOSED and not entry.linked else entry.path.parent
    return None if folder == root else folder.name


def labelled_folders(path: str | os.PathLike[str], domains: bool = False) -> list[ImageItem]:
    """The images of `path/CLASS/`, or with `domains` of `path/DOMAIN/CLASS/`, labelled with the folders' names.

    Class folders are searched recursively. A class folder without images is an error, as are images that lie outside
    the class folders: what is left out unseen would falsify every figure computed from the rest.
    """
    if isinstance(path, str) and is_url(path):
        return remote_folders(path, domains)
    root = existing_folder(path)
    if not domains:
        return _class_folders(root, list_folder(root), None)
    items: list[ImageItem] = []
    for domain in _subfolders(root, list_folder(root), "domain"):
        inside = list_or_problem(domain.path) if domain.problem is None else [domain]
        items += _class_folders(domain.path, inside, domain.path.name)
    return items


def existing_folder(path: str | os.PathLike[str]) -> Path:
    """`path` as a folder that exists, or an error with the nearest name."""
    folder = user_path(path)
    # The functions of os.path, unlike those of Path, answer "no" for names that the system refuses.
    if not os.path.lexists(folder):
        raise does_not_exist(folder)
    if not is_folder(folder):
        raise InputError(f"{str(folder)!r} is a file, but a folder with one subfolder per class is needed.")
    return folder


def does_not_exist(path: Path) -> InputError:
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


def _class_folders(root: Path, entries: list[Listed], domain: str | None) -> list[ImageItem]:
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


def _subfolders(root: Path, entries: list[Listed], kind: str) -> list[Listed]:
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


def no_images(folder: Path) -> InputError:
    """The error for a folder that holds no image: it says what it holds instead."""
    others = [entry.path.name for entry in list_folder(folder)]
    what = f"It holds {len(others)} other entries, such as {others[0]!r}." if others else "It is empty."
    return InputError(f"The folder {str(folder)!r} holds no image. {what} Image files end in .jpg, .png, .webp, ….")
