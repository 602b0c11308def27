"""Images in folders: flat, one folder per class, or one folder per domain with one per class inside.

Only names are read, never the files, so that 100,000 images are listed in a moment.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError


def folder_images(folder: Path) -> list[ImageItem]:
    """Every image below `folder`, sorted by path. Those in subfolders are labelled with their folder's name."""
    items = [
        ImageItem(path.as_posix(), path, label=None if path.parent == folder else path.parent.name)
        for path in walk(folder)
    ]
    if not items:
        raise _no_images(folder)
    return items


def labelled_folders(path: str | os.PathLike[str], domains: bool = False) -> list[ImageItem]:
    """The images of `path/CLASS/`, or with `domains` of `path/DOMAIN/CLASS/`, labelled with the folders' names.

    Class folders are searched recursively. A class folder without images is an error, as are images that lie outside
    the class folders: what is left out unseen would falsify every figure computed from the rest.
    """
    root = existing_folder(path)
    if not domains:
        return _class_folders(root, None)
    return [item for folder in _subfolders(root, "domain") for item in _class_folders(folder, folder.name)]


def existing_folder(path: str | os.PathLike[str]) -> Path:
    """`path` as a folder that exists, or an error with the nearest name."""
    folder = Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises for an unknown ~user)
    # The functions of os.path, unlike those of Path, answer "no" for names that the system refuses.
    if not os.path.lexists(folder):
        raise does_not_exist(folder)
    if not os.path.isdir(folder):  # noqa: PTH112
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


def _class_folders(root: Path, domain: str | None) -> list[ImageItem]:
    items: list[ImageItem] = []
    for folder in _subfolders(root, "class"):
        found = [ImageItem(path.as_posix(), path, folder.name, domain) for path in walk(folder)]
        if not found:
            raise InputError(f"The class folder {str(folder)!r} holds no image. Add some, or remove the folder.")
        items += found
    return items


def _subfolders(root: Path, kind: str) -> list[Path]:
    """The folders in `root`, one per class or domain; an error if there are none, or images beside them."""
    entries = _entries(root)
    folders = [root / entry.name for entry in entries if entry.is_dir()]
    loose = [entry.name for entry in entries if _is_image_name(entry.name) and not entry.is_dir()]
    if not folders:
        found = f"{len(loose)} image(s) but no folders" if loose else "no folders"
        raise InputError(f"{str(root)!r} holds {found}. It must hold one folder per {kind}, with the images inside.")
    if loose:
        raise InputError(
            f"{len(loose)} image(s) lie directly in {str(root)!r}, outside its {kind} folders, the first is "
            f"{loose[0]!r}. Move them into a {kind} folder."
        )
    return folders


def walk(folder: Path, linked: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Image files below `folder` in sorted order. Linked folders are followed, but not into themselves."""
    for entry in _entries(folder):
        # The entry's type comes with the listing; only symbolic links cost a look at the file.
        if entry.is_dir():
            path = folder / entry.name
            if not entry.is_symlink():
                yield from walk(path, linked)
                continue
            target = path.resolve()
            if target not in linked and not folder.resolve().is_relative_to(target):
                yield from walk(path, linked | {target})
        elif _is_image_name(entry.name):
            yield folder / entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be listed: {error.strerror}.") from error
    return sorted(visible, key=lambda entry: entry.name)


def _is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS  # noqa: PTH122 (a Path per name is slow)


def _no_images(folder: Path) -> InputError:
    others = [entry.name for entry in _entries(folder)]
    what = f"It holds {len(others)} other entries, such as {others[0]!r}." if others else "It is empty."
    return InputError(f"The folder {str(folder)!r} holds no image. {what} Image files end in .jpg, .png, .webp, ….")
