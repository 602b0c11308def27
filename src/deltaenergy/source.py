"""What "images" may be, everywhere: a path, folder or glob, a list of those, PIL images, arrays, torch tensors, a table
of paths or images, a dataset of the Hugging Face Hub or of torch, a WebDataset archive, a feature store, a URL. All
become one stream of `ImageItem`, listed as it is gone through; nothing is decoded here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from deltaenergy.core.progress import Progress
from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.data.file import user_path
from deltaenergy.data.formats.folder import local_folders, path_images
from deltaenergy.data.formats.hub import dataset_images, is_dataset, is_dataset_dict
from deltaenergy.data.formats.memory import array_images, is_tensor, is_torch_data, tensor_images, torch_images
from deltaenergy.data.formats.table import arrow_table, is_table, table_images
from deltaenergy.data.items import Content, ImageItem
from deltaenergy.data.remote.listing import remote_folders, url_images
from deltaenergy.data.remote.url import is_url
from deltaenergy.data.streams import ImageStream, OtherFiles
from deltaenergy.errors import InputError
from deltaenergy.store.encoder import Describes
from deltaenergy.store.manifest import is_store
from deltaenergy.store.store import FeatureStore, StoredImage
from deltaenergy.store.writer import Fill, fill_store

__all__ = ["build_store", "image_stream", "labelled_folders", "load_images", "with_unique_ids"]

# A path, an image, images in memory, or what gives images as they are requested.
Part: TypeAlias = str | os.PathLike[str] | ImageItem | list[Content] | Callable[[], Iterator[ImageItem]]

ACCEPTED = (
    "a path, a folder, a glob, a PIL image, an 8-bit array of shape (height, width, 3), a torch tensor of shape "
    "(3, height, width), a table with a column of paths or images, a dataset of the Hugging Face Hub, a torch Dataset "
    "or DataLoader, a .tar archive, a feature store, a URL such as s3://bucket/photos/, or a list of these"
)


def labelled_folders(path: str | os.PathLike[str], domains: bool = False) -> list[ImageItem]:
    """The images of `path/CLASS/`, or with `domains` of `path/DOMAIN/CLASS/`, labelled with the folders' names.

    Class folders are searched recursively. A class folder without images is an error, as are images outside the class
    folders: what is left out unseen would falsify every number computed from the rest.
    """
    if isinstance(path, str) and is_url(path):
        return remote_folders(path, domains)
    return local_folders(user_path(path), domains)


def image_stream(images: Any) -> ImageStream:
    """The images that `images` stands for, in a stable order, each with an id of its own, a few at a time in memory.

    A path or pattern given alone must exist. In a list or table, a missing file is not an error here: it is reported as
    unreadable when its turn comes, and all others are done.
    """
    if isinstance(images, ImageStream):
        return images
    if isinstance(images, (str, os.PathLike)):
        others = OtherFiles()
        return ImageStream(lambda: _from_path(images, others, alone=True), stored=_is_stored(images), others=others)
    if (part := _part_of(images)) is not None:
        return _of_parts([part], _is_stored(images))
    if isinstance(images, Iterable) and not isinstance(images, Mapping):
        return _of_parts(*_parts_of_list(images))
    raise InputError(f"images is {_describe(images)}. Give {ACCEPTED}.")


def load_images(images: Any) -> list[ImageItem]:
    """All images of `image_stream` in a list."""
    return list(image_stream(images))


def build_store(
    model: Describes,
    images: Any,
    out: str | Path,
    *,
    patches: bool = False,
    dtype: str | None = None,
    shard_size: int | None = None,
    retry_unreadable: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
    fill: Fill | None = None,
) -> FeatureStore:
    """Encode `images` into the store at `out`, which is made if it is not there and else gone on with.

    Images that the store has already are not encoded again; a file whose bytes changed is. Pictures with equal bytes
    are encoded once and have a row each. Damaged shards are found by their checksums and encoded anew.

    Args:
        model: the model; a store that another one made is an error.
        images: whatever counts as images. An image is known by its id, and replaces an earlier one of that id.
        out: the store's folder.
        patches: store patch features too (P times as large).
        dtype: `float32` (default) or `float16`.
        shard_size: images per shard; work since the last whole shard is lost when the run is killed.
        retry_unreadable: try those again that could not be read before.
        batch_size: images per pass of the image tower.
        progress: called with (done, total) images.
        fill: who encodes the shards, such as `deltaenergy.scale.Processes`; this process if left out.
    """
    fill_store(
        model,
        image_stream(images),
        out,
        patches=patches,
        dtype=dtype,
        shard_size=shard_size,
        retry_unreadable=retry_unreadable,
        batch_size=batch_size,
        progress=progress,
        fill=fill,
    )
    return FeatureStore.open(out)


def with_unique_ids(items: list[ImageItem]) -> list[ImageItem]:
    """An image that is given twice keeps both places; the second is called "name (2)"."""
    return list(ImageStream(lambda: iter(items)))


def _of_parts(parts: list[Part], stored: bool) -> ImageStream:
    counts = [len(part) if isinstance(part, list) else 1 for part in parts if isinstance(part, (ImageItem, list))]
    count = sum(counts) if len(counts) == len(parts) else None
    others = OtherFiles()
    return ImageStream(lambda: _from_parts(parts, others), count, stored=stored, others=others)


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
            _from_path(part, OtherFiles(), alone=False)
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
    return isinstance(value, FeatureStore) or (isinstance(value, ImageStream) and value.stored)


def _from_parts(parts: list[Part], others: OtherFiles) -> Iterator[ImageItem]:
    count = 0
    for part in parts:
        if isinstance(part, ImageItem):
            found = iter([part])
        elif isinstance(part, (str, os.PathLike)):
            found = _from_path(part, others, alone=False)
        elif isinstance(part, list):
            found = (ImageItem(f"image {number}", content) for number, content in enumerate(part, start=count))
        else:
            found = part()
        for item in found:
            yield item
            count += 1


def _from_path(given: str | os.PathLike[str], others: OtherFiles, *, alone: bool) -> Iterator[ImageItem]:
    """The images of a path, pattern or URL; what is wrong with its text is an error now."""
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise InputError(f"images contains {text!r}, which is not a path. Give {ACCEPTED}.")
    images = url_images if is_url(text) else path_images
    return images(text, _stored_images, others, alone=alone)


def _stored_images(folder: str | Path) -> Iterator[ImageItem] | None:
    return iter(FeatureStore.open(folder).items()) if is_store(folder) else None


def _part_of(value: Any) -> Part | None:
    """The images of something that is not a path, or None if it is something else, such as a list."""
    if isinstance(value, ImageItem):
        return value
    if isinstance(value, ImageStream):
        return value.__iter__
    if isinstance(value, FeatureStore):
        return lambda: iter(value.items())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, Image.Image):
        return [value]
    if is_dataset(value):
        return partial(dataset_images, value)
    if is_dataset_dict(value):
        raise InputError(f"The dataset has several splits: choose one, as in data[{next(iter(value))!r}].")
    if is_table(value):
        return partial(table_images, arrow_table(value))
    if is_torch_data(value):
        items = list(torch_images(value))  # a loader may have another order each time
        return lambda: iter(items)
    if is_tensor(value):
        return list[Content](tensor_images(value))
    if hasattr(value, "__array__") and hasattr(value, "dtype"):  # NumPy arrays, pandas columns
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # one on another device
            raise InputError(f"images is {_describe(value)}, which cannot become a NumPy array: {error}") from error
        return (
            None if array.dtype.kind in "OUS" else list[Content](array_images(array))
        )  # an array of paths or images is a list
    return None


def _describe(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"of type {name}"
