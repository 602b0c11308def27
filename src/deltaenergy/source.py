"""What "images" may be, everywhere: a path, folder or glob, a list of those, PIL images, arrays, torch tensors, a table
of paths or pictures, a data set of the hub or of torch, a WebDataset archive, a feature store, an address. All become
one stream of `ImageItem`, listed as it is gone through; nothing is decoded here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from deltaenergy.data.decode import EXTENSIONS, ImageSource
from deltaenergy.data.formats.folder import does_not_exist, folder_label, labelled_folders, no_images
from deltaenergy.data.formats.hub import dataset_images, is_dataset, is_dataset_dict
from deltaenergy.data.formats.memory import is_tensor, is_torch_data, tensor_pictures, torch_images
from deltaenergy.data.formats.pattern import braces, matches
from deltaenergy.data.formats.table import TABLE_EXTENSIONS, is_table, table_file_images, table_images
from deltaenergy.data.formats.tar import COMPRESSED_TARS, TAR_EXTENSIONS, compressed, tar_images
from deltaenergy.data.formats.walk import EntryKind, Listed, tree, walk
from deltaenergy.data.items import ImageItem
from deltaenergy.data.regular import is_folder, user_path, why_not_a_file
from deltaenergy.data.remote.listing import PARTS, folder_images, remote_images
from deltaenergy.data.remote.url import is_url
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError
from deltaenergy.store.items import StoredImage
from deltaenergy.store.shard import is_store
from deltaenergy.store.store import Store

__all__ = ["image_stream", "labelled_folders", "load_images", "with_unique_ids"]

# A path, an image, pictures in memory, or what gives images as they are asked for.
Part: TypeAlias = str | os.PathLike[str] | ImageItem | list[ImageSource] | Callable[[], Iterator[ImageItem]]

ACCEPTED = (
    "a path, a folder, a glob, a PIL image, an 8-bit array of shape (height, width, 3), a torch tensor of shape "
    "(3, height, width), a table with a column of paths or pictures, a hub data set, a torch Dataset or DataLoader, a "
    ".tar archive, a feature store, an address such as s3://bucket/photos/, or a list of these"
)


def image_stream(images: Any) -> ImageStream:
    """The images that `images` stands for, in a stable order, each with an id of its own, a few at a time in memory.

    A path or pattern given alone must exist. In a list or table, a missing file is no error here: it is reported as
    unreadable when its turn comes, and all others are done.
    """
    if isinstance(images, ImageStream):
        return images
    if isinstance(images, (str, os.PathLike)):
        return ImageStream(lambda: _from_path(images, alone=True), stored=_is_stored(images))
    if (part := _part_of(images)) is not None:
        return _of_parts([part], _is_stored(images))
    if isinstance(images, Iterable) and not isinstance(images, Mapping):
        return _of_parts(*_parts_of_list(images))
    raise InputError(f"images is {_describe(images)}. Give {ACCEPTED}.")


def load_images(images: Any) -> list[ImageItem]:
    """All images of `image_stream` in a list."""
    return list(image_stream(images))


def with_unique_ids(items: list[ImageItem]) -> list[ImageItem]:
    """An image that is given twice keeps both places; the second is called "name (2)"."""
    return list(ImageStream(lambda: iter(items)))


def _of_parts(parts: list[Part], stored: bool) -> ImageStream:
    counts = [len(part) if isinstance(part, list) else 1 for part in parts if isinstance(part, (ImageItem, list))]
    count = sum(counts) if len(counts) == len(parts) else None
    return ImageStream(lambda: _from_parts(parts), count, stored=stored)


def _parts_of_list(images: Iterable[Any]) -> tuple[list[Part], bool]:
    """The elements, and whether a feature store is among them; what is wrong with one, as far as its type or name
    tells, is said at once.
    """
    parts: list[Part] = []
    stored = False
    for position, element in enumerate(images):
        part: Part | None = element if isinstance(element, (str, os.PathLike)) else _part_of(element)
        if part is None:
            raise InputError(f"images[{position}] is {_describe(element)}. Give {ACCEPTED}.")
        if isinstance(part, (str, os.PathLike)):
            _from_path(part, alone=False)
        parts.append(part)
        stored = stored or _is_stored(element)
    return parts, stored


def _is_stored(value: Any) -> bool:
    if isinstance(value, str) and is_url(value):
        return is_store(value)
    if isinstance(value, (str, os.PathLike)):
        path = user_path(value)
        return path.suffix.lower() not in EXTENSIONS and is_store(path)
    if isinstance(value, ImageItem):
        return isinstance(value.source, StoredImage)
    return isinstance(value, Store) or (isinstance(value, ImageStream) and value.stored)


def _from_parts(parts: list[Part]) -> Iterator[ImageItem]:
    count = 0
    for part in parts:
        if isinstance(part, ImageItem):
            found = iter([part])
        elif isinstance(part, (str, os.PathLike)):
            found = _from_path(part, alone=False)
        elif isinstance(part, list):
            found = (ImageItem(f"image {place}", picture) for place, picture in enumerate(part, start=count))
        else:
            found = part()
        for item in found:
            yield item
            count += 1


def _from_path(given: str | os.PathLike[str], *, alone: bool) -> Iterator[ImageItem]:
    """The images of a path or pattern. Whether it is there is looked at now, what it holds as it is gone through."""
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise InputError(f"images holds {text!r}, which is no path. Give {ACCEPTED}.")
    if is_url(text):
        return remote_images(text, _remote_folder, alone=alone)
    path = user_path(text)
    # A listed name with an image's ending needs no look at the disk: opening it later tells all there is to know.
    if not alone and not glob.has_magic(text) and path.suffix.lower() in EXTENSIONS:
        return iter([ImageItem(path.as_posix(), path)])
    if is_folder(path):
        return iter(Store.open(path).items()) if is_store(path) else _from_folder(path)
    # lexists: a broken link exists, and is then reported as unreadable. Names may hold [ and ], so exact ones go first.
    if os.path.lexists(path):
        return _from_file(path)
    if len(names := braces(text)) > 1:
        return chain.from_iterable([_from_path(name, alone=True) for name in names])
    if glob.has_magic(text):
        return _from_pattern(path, alone)
    if alone or path.suffix.lower() in TABLE_EXTENSIONS | TAR_EXTENSIONS:
        raise does_not_exist(path)
    return iter([ImageItem(path.as_posix(), path)])


def _remote_folder(address: str) -> Iterator[ImageItem]:
    return iter(Store.open(address).items()) if is_store(address) else folder_images(address)


def _from_file(path: Path) -> Iterator[ImageItem]:
    if path.suffix.lower() in TABLE_EXTENSIONS:
        return table_file_images(path)
    if path.suffix.lower() in TAR_EXTENSIONS:
        return tar_images(path)
    if path.name.lower().endswith(COMPRESSED_TARS):
        raise compressed(repr(str(path)))
    return iter([ImageItem(path.as_posix(), path)])


def _from_folder(folder: Path) -> Iterator[ImageItem]:
    """The pictures in a folder; of one that holds none, those in its archives and Parquet files."""
    pictures = problems = False
    for entry in walk(folder):
        pictures |= entry.kind is not EntryKind.CLOSED
        problems = True
        yield entry.item(folder_label(entry, folder))
    if pictures:
        return
    parts = False
    for entry in tree(folder):
        if entry.kind is EntryKind.OTHER and entry.path.suffix.lower() in PARTS:
            parts = True
            yield from _from_part(entry)
    if not parts and not problems:
        raise no_images(folder)


def _from_part(entry: Listed) -> Iterator[ImageItem]:
    """The images of an archive or table that was found; what cannot be opened is listed as unreadable."""
    reason = why_not_a_file(entry.path)
    return _from_file(entry.path) if reason is None else iter([replace(entry, problem=reason).item()])


def _from_pattern(pattern: Path, alone: bool) -> Iterator[ImageItem]:
    """What a pattern matches: image files, the images in folders, archives, and tables if it asks for their ending;
    other files are passed over.
    """
    entries = matches(pattern)
    if not entries:
        if alone:
            raise InputError(f"No file matches the pattern {str(pattern)!r}.")
        yield ImageItem(pattern.as_posix(), pattern)
        return
    # A pattern with ** matches a folder and the files in it as well: each path counts once.
    found: dict[Path, Listed] = {}
    parts: list[Listed] = []
    wanted = TAR_EXTENSIONS | ({pattern.suffix.lower()} & TABLE_EXTENSIONS)
    for entry in entries:
        if entry.path.suffix.lower() in wanted and entry.kind is EntryKind.OTHER:
            parts.append(entry)
        elif entry.kind is EntryKind.FOLDER:
            found.update((inside.path, inside) for inside in walk(entry.path, strict=False))
        elif entry.kind is not EntryKind.OTHER:
            found[entry.path] = entry
    if not found and not parts:
        raise InputError(f"The pattern {str(pattern)!r} matches {str(entries[0].path)!r}, but no image.")
    for entry in found.values():
        yield entry.item()
    for entry in parts:
        yield from _from_part(entry)


def _part_of(value: Any) -> Part | None:
    """The images of something that is no path, or None if it is something else, such as a list."""
    if isinstance(value, ImageItem):
        return value
    if isinstance(value, ImageStream):
        return value.__iter__
    if isinstance(value, Store):
        return lambda: iter(value.items())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, Image.Image):
        return [value]
    if is_dataset(value):
        return partial(dataset_images, value)
    if is_dataset_dict(value):
        raise InputError(f"The data set has several splits: choose one, as in data[{next(iter(value))!r}].")
    if is_table(value):
        return partial(table_images, value)
    if is_torch_data(value):
        items = list(torch_images(value))  # a loader may have another order each time
        return lambda: iter(items)
    if is_tensor(value):
        return list[ImageSource](tensor_pictures(value))
    if hasattr(value, "__array__") and hasattr(value, "dtype"):  # NumPy arrays, pandas columns
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # one on another device
            raise InputError(f"images is {_describe(value)}, which cannot become a NumPy array: {error}") from error
        return None if array.dtype.kind in "OUS" else _pictures(array)  # an array of paths or images is a list
    return None


def _pictures(array: np.ndarray[Any, Any]) -> list[ImageSource]:
    if array.ndim == 4:
        return [picture for one in array for picture in _pictures(one)]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        remedy = "Pixels must be 8-bit integers (uint8) of shape (height, width, 3)."
        if array.dtype.kind == "f":
            remedy += " For floats from 0 to 1 write (255 * array).round().astype('uint8')."
        elif array.ndim == 3 and array.shape[0] in (1, 3):
            remedy += " The channels seem to come first: write array.transpose(1, 2, 0)."
        raise InputError(f"images holds an array of {array.dtype} with shape {array.shape}. {remedy}")
    pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return [Image.fromarray(np.ascontiguousarray(pixels))]


def _describe(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"of type {name}"
