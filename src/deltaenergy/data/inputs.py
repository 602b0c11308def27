"""What "images" may be, everywhere: a path, folder or glob, a list of those, PIL images, arrays, torch tensors, a table
with a path column, a data set of the hub or of torch, a WebDataset archive, a feature store, an address on an object
store. All become one list of `ImageItem`; nothing is decoded here.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deltaenergy.data.addresses import is_address
from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.data.folder import does_not_exist, folder_images, labelled_folders
from deltaenergy.data.hub import dataset_images, is_dataset, is_dataset_dict
from deltaenergy.data.items import ImageItem
from deltaenergy.data.manifest import is_store
from deltaenergy.data.pattern import matches
from deltaenergy.data.regular import is_folder, user_path, why_not_a_file
from deltaenergy.data.remote_listing import remote_images
from deltaenergy.data.store import FeatureStore
from deltaenergy.data.table import TABLE_EXTENSIONS, is_table, table_file_images, table_images
from deltaenergy.data.tar import TAR_EXTENSIONS, tar_images
from deltaenergy.data.torch_images import is_tensor, is_torch_data, tensor_pictures, torch_images
from deltaenergy.data.walk import Kind, Listed, walk
from deltaenergy.errors import InputError

__all__ = ["labelled_folders", "load_images", "with_unique_ids"]

ACCEPTED = (
    "a path, a folder, a glob, a PIL image, an 8-bit array of shape (height, width, 3), a torch tensor of shape "
    "(3, height, width), a table with a path column, a hub data set, a torch Dataset or DataLoader, a .tar archive, a "
    "feature store, or a list of these"
)


def load_images(images: Any) -> list[ImageItem]:
    """The images that `images` stands for, in a stable order, each with an id of its own.

    A path or pattern given alone must exist. In a list or table, a missing file is no error here: it is reported as
    unreadable when its turn comes, and all others are done.
    """
    if isinstance(images, (str, os.PathLike)):
        items = _from_path(images, alone=True)
    elif (whole := _from_object(images, 0)) is not None:
        items = whole
    elif isinstance(images, Iterable) and not isinstance(images, Mapping):
        items = _from_list(images)
    else:
        raise InputError(f"images is {_describe(images)}. Give {ACCEPTED}.")
    return with_unique_ids(items)


def _from_list(images: Iterable[Any]) -> list[ImageItem]:
    items: list[ImageItem] = []
    for position, element in enumerate(images):
        if isinstance(element, (str, os.PathLike)):
            items += _from_path(element, alone=False)
        elif (found := _from_object(element, len(items))) is not None:
            items += found
        else:
            raise InputError(f"images[{position}] is {_describe(element)}. Give {ACCEPTED}.")
    return items


def _from_path(given: str | os.PathLike[str], *, alone: bool) -> list[ImageItem]:
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise InputError(f"images holds {text!r}, which is no path. Give {ACCEPTED}.")
    if is_address(text):
        return remote_images(text, alone=alone)
    path = user_path(text)
    is_pattern = glob.has_magic(text)
    # A listed name with an image's ending needs no look at the disk: opening it later tells all there is to know.
    if not alone and not is_pattern and path.suffix.lower() in EXTENSIONS:
        return [ImageItem(path.as_posix(), path)]
    if is_folder(path):
        return FeatureStore.open(path).items() if is_store(path) else folder_images(path)
    # lexists: a broken link exists, and is then reported as unreadable. Names may hold [ and ], so exact ones go first.
    if os.path.lexists(path):
        if path.suffix.lower() in TABLE_EXTENSIONS:
            return table_file_images(path)
        if path.suffix.lower() in TAR_EXTENSIONS:
            return tar_images(path)
        return [ImageItem(path.as_posix(), path)]
    if is_pattern:
        found = matches(path)
        if found:
            return _from_matches(text, found)
        if alone:
            raise InputError(f"No file matches the pattern {text!r}.")
    if alone or path.suffix.lower() in TABLE_EXTENSIONS | TAR_EXTENSIONS:
        raise does_not_exist(path)
    return [ImageItem(path.as_posix(), path)]


def _from_matches(pattern: str, entries: list[Listed]) -> list[ImageItem]:
    """What a pattern matched: image files, the images in folders, and archives; other files are passed over."""
    # A pattern with ** matches a folder and the files in it as well: each path counts once.
    found: dict[Path, Listed] = {}
    in_archives: list[ImageItem] = []
    for entry in entries:
        if entry.path.suffix.lower() in TAR_EXTENSIONS and entry.kind is Kind.OTHER:
            reason = why_not_a_file(entry.path)
            in_archives += tar_images(entry.path) if reason is None else [replace(entry, problem=reason).item()]
        elif entry.kind is Kind.FOLDER:
            found.update((inside.path, inside) for inside in walk(entry.path, strict=False))
        elif entry.kind is not Kind.OTHER:
            found[entry.path] = entry
    if not found and not in_archives:
        raise InputError(f"The pattern {pattern!r} matches {str(entries[0].path)!r}, but no image.")
    return [entry.item() for entry in found.values()] + in_archives


def _from_object(value: Any, position: int) -> list[ImageItem] | None:
    """The images of something that is no path, or None if it is something else, such as a list."""
    if isinstance(value, ImageItem):
        return [value]
    if isinstance(value, FeatureStore):
        return value.items()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [ImageItem(f"image {position}", bytes(value))]
    if isinstance(value, Image.Image):
        return [ImageItem(f"image {position}", value)]
    if is_dataset(value):
        return dataset_images(value)
    if is_dataset_dict(value):
        raise InputError(f"The data set has several splits: choose one, as in data[{next(iter(value))!r}].")
    if is_table(value):
        return table_images(value)
    if is_torch_data(value):
        return torch_images(value)
    if is_tensor(value):
        return [ImageItem(f"image {position + i}", picture) for i, picture in enumerate(tensor_pictures(value))]
    if hasattr(value, "__array__") and hasattr(value, "dtype"):  # NumPy arrays, pandas columns
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # one on another device
            raise InputError(f"images is {_describe(value)}, which cannot become a NumPy array: {error}") from error
        return _from_array(array, position)
    return None


def _from_array(array: np.ndarray[Any, Any], position: int) -> list[ImageItem] | None:
    if array.dtype.kind in "OUS":  # an array of paths or images is a list
        return None
    if array.ndim == 4:
        return [item for offset, one in enumerate(array) for item in _from_array(one, position + offset) or []]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        remedy = "Pixels must be 8-bit integers (uint8) of shape (height, width, 3)."
        if array.dtype.kind == "f":
            remedy += " For floats from 0 to 1 write (255 * array).round().astype('uint8')."
        elif array.ndim == 3 and array.shape[0] in (1, 3):
            remedy += " The channels seem to come first: write array.transpose(1, 2, 0)."
        raise InputError(f"images holds an array of {array.dtype} with shape {array.shape}. {remedy}")
    pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return [ImageItem(f"image {position}", Image.fromarray(np.ascontiguousarray(pixels)))]


def with_unique_ids(items: list[ImageItem]) -> list[ImageItem]:
    """An image that is given twice keeps both places; the second is called "name (2)"."""
    if len({item.id for item in items}) == len(items):
        return items
    taken = {item.id for item in items}
    seen: Counter[str] = Counter()
    unique = []
    for item in items:
        seen[item.id] += 1
        name = item.id
        while seen[item.id] > 1 and name in taken:
            name = f"{item.id} ({seen[item.id]})"
            seen[item.id] += name in taken
        taken.add(name)
        unique.append(item if name == item.id else replace(item, id=name))
    return unique


def _describe(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"of type {name}"
