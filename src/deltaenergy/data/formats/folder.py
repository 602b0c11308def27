"""Images in folders, here or on an object store: flat, one folder per class, or one folder per domain with one per
class inside, and patterns such as `photos/**/*.png`.

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
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from deltaenergy.data.decode import EXTENSIONS, UnreadableImage
from deltaenergy.data.file import File, LocalFile, file_at, is_folder, reason_of, user_path
from deltaenergy.data.formats.table import TABLE_EXTENSIONS, table_file_images
from deltaenergy.data.formats.tar import COMPRESSED_TARS, TAR_EXTENSIONS, tar_images
from deltaenergy.data.formats.walk import EntryKind, FolderEntry, tree
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.errors import Refused
from deltaenergy.data.streams import OtherFiles
from deltaenergy.errors import InputError

# Files that stand for the images in them.
CONTAINERS = TABLE_EXTENSIONS | TAR_EXTENSIONS
# What a folder without images may contain instead.
SHARDS = TAR_EXTENSIONS | {".parquet"}
_BRACES = re.compile(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}")
MOST_NAMES = 1_000_000


def path_images(text: str, others: OtherFiles, *, alone: bool) -> Iterator[ImageItem]:
    """The images of a local path or pattern; one given `alone` must be there, a file of a list is else unreadable.

    Whether it is there is checked now; what it contains is listed as it is read. `others` counts what is not an image.
    """
    path = user_path(text)
    # A listed name with an image's suffix needs no look-up: opening it later shows what it is.
    if not alone and not glob.has_magic(text) and path.suffix.lower() in EXTENSIONS:
        return iter([ImageItem(path.as_posix(), path)])
    if is_folder(path):
        return folder_images(str(path), tree(path), others)
    # lexists: a broken link exists, and is then reported as unreadable. Names may hold [ and ], so exact ones go first.
    if os.path.lexists(path):
        return file_images(LocalFile(path))
    if len(names := braces(text)) > 1:
        return chain.from_iterable([path_images(name, others, alone=True) for name in names])
    if glob.has_magic(text):
        root, wild = split_pattern(path.parts)
        hidden = any(part.startswith(".") for part in wild)
        entries = tree(Path(*root), strict=False, hidden=hidden, enter=lambda parts: may_lead_to(parts, wild))
        return matching_images(path.as_posix(), entries if is_folder(Path(*root)) else (), wild, others, alone=alone)
    if alone or path.suffix.lower() in CONTAINERS:
        raise does_not_exist(path)
    return iter([ImageItem(path.as_posix(), path)])


def file_images(file: File) -> Iterator[ImageItem]:
    """The images of a file that was given. Raises `InputError` for an archive or table that cannot be read."""
    if file.suffix in TABLE_EXTENSIONS:
        return table_file_images(file)
    if file.suffix in TAR_EXTENSIONS:
        return tar_images(file)
    if file.name.partition("?")[0].lower().endswith(COMPRESSED_TARS):
        raise InputError(
            f"{file.name!r} is a compressed archive, whose images cannot be read from their place. Unpack it to a .tar "
            "first, as with gunzip or unzstd."
        )
    return iter([ImageItem(file.name, file)])


def found_images(file: File) -> Iterator[ImageItem]:
    """The images of a file that was found in a folder or list; one that cannot be read is listed as unreadable."""
    try:
        images = file_images(file.described())
        yield next(images)
    except (UnreadableImage, Refused, InputError) as error:
        yield ImageItem(file.name, None, problem=reason_of(error))
        return
    yield from images


def folder_images(name: str, entries: Iterable[FolderEntry], others: OtherFiles) -> Iterator[ImageItem]:
    """The images in a folder; of one that has none, those in its archives and Parquet files."""
    has_images = has_problems = False
    skipped, shards = OtherFiles(), list[File]()
    for entry in entries:
        if entry.is_listed:
            has_images |= entry.kind is not EntryKind.CLOSED
            has_problems = True
            yield entry.item(entry.folders[-1] if entry.folders else None)
        elif entry.kind is EntryKind.OTHER and entry.file.suffix in SHARDS:
            shards.append(entry.file)
        elif entry.kind is EntryKind.OTHER:
            skipped.add(entry.file.name)
    for file in shards:
        if has_images:
            skipped.add(file.name)
        else:
            yield from found_images(file)
    others.add(skipped.first or "", skipped.count)
    if not shards and not has_problems:
        raise no_images(name, skipped)


def local_folders(folder: Path, domains: bool) -> list[ImageItem]:
    """The images of the class folders in a folder, as `class_folder_images` gives them."""
    if not os.path.lexists(folder):
        raise does_not_exist(folder)
    if not is_folder(folder):
        raise InputError(f"{str(folder)!r} is a file, but a folder with one subfolder per class is needed.")
    return class_folder_images(folder.as_posix(), tree(folder), domains)


def class_folder_images(name: str, entries: Iterable[FolderEntry], domains: bool) -> list[ImageItem]:
    """The images of class folders, or with `domains` of class folders in domain folders, labelled with their names.

    An empty class folder is an error, as are images outside the class folders: what is left out unseen would falsify
    every number computed from the rest. What cannot be read and belongs to no class has no label.
    """
    depth, kind = (2, "domain and class folders") if domains else (1, "class folders")
    items, skipped, empty = list[ImageItem](), OtherFiles(), dict[tuple[str, ...], str]()
    for entry in entries:
        folders = entry.folders
        if entry.kind is EntryKind.FOLDER and len(folders) < depth:
            empty.pop(folders, None)
            empty[entry.parts] = entry.file.name
        elif entry.is_listed:
            if len(folders) < depth and entry.kind is not EntryKind.CLOSED:
                raise InputError(f"{entry.file.name!r} is outside the {kind} of {name!r}. Move it into one.")
            empty.pop(folders[:1], None)
            empty.pop(folders[:2], None)
            label = folders[depth - 1] if len(folders) >= depth else None
            items.append(entry.item(label, folders[0] if domains and folders else None))
        elif entry.kind is EntryKind.OTHER:
            skipped.add(entry.file.name)
    for folder in empty.values():
        raise InputError(f"No images in the class folder {folder!r}. Add some, or remove the folder.")
    if not items:
        raise no_images(name, skipped)
    return items


def matching_images(
    pattern: str, entries: Iterable[FolderEntry], wild: Sequence[str], others: OtherFiles, *, alone: bool
) -> Iterator[ImageItem]:
    """What a pattern matches: images, the images in folders, then those of archives, and of tables if it asks for their
    suffix. A pattern in a list that matches nothing is an image that is not there.
    """
    wanted = TAR_EXTENSIONS | ({os.path.splitext(pattern)[1].lower()} & TABLE_EXTENSIONS)  # noqa: PTH122 (or a URL)
    skipped, containers, is_empty = OtherFiles(), list[File](), True
    for entry in entries:
        if entry.is_listed:
            if _fits(entry.parts, wild) or (entry.kind is EntryKind.CLOSED and may_lead_to(entry.parts, wild)):
                is_empty = False
                yield entry.item()
        elif entry.kind is EntryKind.OTHER and _fits(entry.parts, wild, itself=True):
            if entry.file.suffix in wanted:
                containers.append(entry.file)
            else:
                skipped.add(entry.file.name)
    for file in containers:
        yield from found_images(file)
    others.add(skipped.first or "", skipped.count)
    if is_empty and not containers:
        if alone or skipped.count:
            raise InputError(f"No image matches the pattern {pattern!r}{f' ({skipped})' if skipped.count else ''}.")
        yield ImageItem(pattern, file_at(pattern))


def split_pattern(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The parts of a path before the first that is a pattern, and the others."""
    first = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return list(parts[:first]), [part for part in parts[first:] if part]


def may_lead_to(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether something in a folder of this name can match."""
    if not parts or not pattern or pattern[0] == "**":
        return True
    return _is_match(parts[0], pattern[0]) and may_lead_to(parts[1:], pattern[1:])


def _fits(parts: Sequence[str], pattern: Sequence[str], *, itself: bool = False) -> bool:
    """Whether a file matches, or, unless it must do so itself, a folder that it is in."""
    if not pattern:
        return not (itself and parts)
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        deeper = bool(parts) and not parts[0].startswith(".")
        return _fits(parts, rest, itself=itself) or (deeper and _fits(parts[1:], pattern, itself=itself))
    if not parts or not _is_match(parts[0], first) or (rest and len(parts) == 1):  # a file has nothing below it
        return False
    return _fits(parts[1:], rest, itself=itself)


def _is_match(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and name.startswith(".") <= pattern.startswith(".")


def no_images(name: str, skipped: OtherFiles) -> InputError:
    return InputError(f"No images in {name!r} ({skipped}). Image files end in .jpg, .png, .webp, ….")


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
    # Names are compared without their suffix, which makes no two names alike. Of equal stems, the one with the wanted
    # suffix is kept.
    names.sort(key=lambda name: (Path(name).suffix.lower() == missing.suffix.lower(), name))
    by_stem = {Path(name).stem.lower(): name for name in names}
    matches = difflib.get_close_matches(missing.stem.lower(), by_stem, n=2, cutoff=0.65)
    near = same or [by_stem[match] for match in matches]
    hint = f" Did you mean {' or '.join(repr(str(missing.parent / name)) for name in near)}?" if near else ""
    where = f" ({str(missing)!r} is missing already)" if missing != path else ""
    return InputError(f"{str(path)!r} does not exist{where}.{hint}")


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
