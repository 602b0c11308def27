"""What "images" may be, everywhere: a path, folder or glob, a list of those, PIL images, arrays, torch tensors, a table
of paths or images, a dataset of the Hugging Face Hub or of torch, a WebDataset archive, a feature store, unit features,
a URL.

Public functions start with `as_source(images)`, and all others take the `Source` that it gives:

    ImageStream   images, listed as they are gone through; nothing is decoded here
    Features      unit features in an array, and perhaps their classes
    Store         a feature store
    Rows          some rows of these
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from deltaenergy.core.needs import OF_IMAGES, Lack, Need
from deltaenergy.core.progress import stage
from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.data.file import user_path
from deltaenergy.data.formats.folder import local_folders, path_images
from deltaenergy.data.formats.hub import dataset_images, is_dataset, is_dataset_dict
from deltaenergy.data.formats.memory import array_images, is_tensor, is_torch_data, tensor_images, torch_images
from deltaenergy.data.formats.table import arrow_table, is_table, table_images
from deltaenergy.data.items import ImageItem, StoredRow, from_reference
from deltaenergy.data.remote.listing import remote_folders, url_images
from deltaenergy.data.remote.url import is_folder_url, is_url
from deltaenergy.data.streams import ImageStream, OtherFiles
from deltaenergy.errors import InputError
from deltaenergy.files import hash_value
from deltaenergy.store.folder import open_folder
from deltaenergy.store.plan import PlannedImage, pack_rows, unpack_rows
from deltaenergy.store.shard import Manifest, ShardRecord, is_store
from deltaenergy.store.store import Store, StoredItems

# Images or their contents in memory, or what gives images as they are requested.
Part: TypeAlias = list[Any] | Callable[[], Iterable[ImageItem]]

ACCEPTED = (
    "a path, a folder, a glob, a PIL image, an 8-bit array of shape (height, width, 3), a torch tensor of shape "
    "(3, height, width), a table with a column of paths or images, a dataset of the Hugging Face Hub, a torch Dataset "
    "or DataLoader, a .tar archive, a feature store, a URL such as s3://bucket/photos/, or a list of these"
)


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Unit image features that were computed before, perhaps with their classes (`LabelledFeatures`)."""

    features: Any
    labels: Sequence[str] | Sequence[int] | None = None
    domains: Sequence[str] | None = None
    name: ClassVar[str] = "features"

    def __post_init__(self) -> None:
        if not _are_features(self.features):
            shown = getattr(self.features, "shape", None) or type(self.features).__name__
            raise InputError(f"features must be a float array or tensor with one row per image, (N, D), got {shown}.")
        for name in ("labels", "domains"):
            given = getattr(self, name)
            if given is None:
                continue
            values = given.tolist() if hasattr(given, "tolist") else list(given)
            if len(values) != len(self.features):
                raise InputError(f"{name} has {len(values)} entries for {len(self.features)} rows of features.")
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows of {self.features.shape[1]})"

    def __len__(self) -> int:
        return len(self.features)

    @property
    def identity(self) -> object:
        """Equal for two objects of the same array."""
        return id(self.features)

    @property
    def lacks(self) -> dict[Need, Lack]:
        """What is not in it."""
        return dict.fromkeys(OF_IMAGES, Lack("features were given", f"give it images, not {self.name}."))

    def items(self, classes: Sequence[str] = ()) -> list[ImageItem]:
        """An item per row; `classes` are what labels that are numbers count in."""
        return list(self.each(range(len(self)), classes))

    def each(self, rows: Iterable[int], classes: Sequence[str] = ()) -> Iterator[ImageItem]:
        """The items of some rows."""
        for row in rows:
            label = None if self.labels is None else _class_name(self.labels[row], row, classes)
            domain = None if self.domains is None else _domain(self.domains[row], row)
            yield ImageItem(f"row {row}", None, label, domain, row=StoredRow(self, row))


class LabelledFeatures(Features):
    """Unit image features with their classes, as a database of embeddings has them. Nothing is copied.

    Attributes:
        features: (N, D), an array (perhaps memory-mapped) or tensor.
        labels: for each row a class name, or the position of its class in the class list.
        domains: for each row the style or source it comes from, where that is known.
    """

    name = "LabelledFeatures"


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of feature stores or of `Features`, in any order: each item says where its features are."""

    items: list[ImageItem]

    def __post_init__(self) -> None:
        if any(item.row is None for item in self.items):
            raise InputError(
                "images mixes stored features with images: add those to the store, or give one of the two."
            )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def holders(self) -> list[Store | Features]:
        """What the rows are of."""
        return list({id(item.row.of): item.row.of for item in self.items if item.row is not None}.values())

    @property
    def lacks(self) -> dict[Need, Lack]:
        """What is not in one of them."""
        return {need: lack for holder in self.holders for need, lack in holder.lacks.items()}


Source: TypeAlias = ImageStream | Features | Store | Rows


def as_source(images: Any, labels: Sequence[str] | None = None) -> Source:
    """What `images` stands for, in a stable order, each image with a unique id; `labels` are those of features.

    A path or pattern given alone must exist. In a list or table, a missing file is not an error here: it is reported as
    unreadable when it is read, and all others are done.
    """
    if _are_features(images):
        return Features(images, labels)
    if labels is not None:
        raise InputError("labels belong to features; images bring their own (a folder per class, a table).")
    if isinstance(images, ImageStream | Features | Store | Rows):
        return images
    if isinstance(images, (str, os.PathLike)):
        if _is_store(images):
            return Store.open(os.fspath(images))
        others = OtherFiles()
        return ImageStream(lambda: _from_path(images, others, alone=True), others=others)
    if (part := _part_of(images)) is not None:
        return _of_parts([part])
    if isinstance(images, Iterable) and not isinstance(images, Mapping):
        return _of_list(list(images))
    raise InputError(f"images is {_describe(images)}. Give {ACCEPTED}.")


def list_images(images: Any, *, labels: Sequence[str] | None = None, hold: bool = False) -> Source:
    """`as_source`, and the names of all images are read, so whatever is wrong with them is reported now.

    They are held in memory only with `hold`.
    """
    source = as_source(images, labels)
    if not isinstance(source, ImageStream) or source.listed is not None:
        return source
    with stage("Listing images"):
        if hold:
            return _stream_of(list(source))
        source.survey()
    return source


def image_stream(images: Any) -> ImageStream:
    """The images that `images` stands for, in a stable order, each with a unique id, a few at a time in memory.

    A path or pattern given alone must exist; a missing file of a list or table is reported as unreadable.
    """
    source = as_source(images)
    return source if isinstance(source, ImageStream) else _stream_of(load_images(source))


def items_on_demand(source: Source) -> Sequence[ImageItem]:
    """All images; those of a whole store are looked up when they are asked for."""
    return StoredItems(source) if isinstance(source, Store) and len(source) else load_images(source)


def load_images(images: Any) -> list[ImageItem]:
    """All images of `image_stream` in a list."""
    return list(items_of(as_source(images), unreadable=True))


def items_of(source: Source, *, unreadable: bool = False) -> Iterator[ImageItem]:
    """The images one by one; of a store also those that have no features, if `unreadable` ones are wanted."""
    match source:
        case Features():
            return source.each(range(len(source)))
        case Store():
            return iter(source.items()) if unreadable else source.readable_items()
        case Rows():
            return iter(source.items)
    return iter(source)


def has_pixels(source: Source) -> bool:
    """Whether these are images, of which all else can be computed."""
    return Need.PIXELS not in source.lacks


def check_has(source: Source, needs: Iterable[Need], who: str) -> None:
    """Raise `InputError` unless there is all that `who` needs of the images."""
    for need in sorted(set(needs) & source.lacks.keys()):
        raise InputError(f"{who} needs {need.value}: {source.lacks[need].remedy}")


def require_images(images: Any, who: str) -> ImageStream:
    """The images, if that is what they are, or an error that `who` needs them."""
    source = as_source(images)
    check_has(source, [Need.PIXELS], who)
    assert isinstance(source, ImageStream)
    return source


def stores_of(source: Source) -> list[Store]:
    """The feature stores that it is of."""
    return [holder for holder in _holders(source) if isinstance(holder, Store)]


class SourcePart(NamedTuple):
    """Some consecutive images, for another process, which has them from `content` by `open_part`.

    `version` is another one when something about the images has changed.
    """

    images: int
    version: str
    content: bytes


def parts_of(source: Source, size: int) -> Iterator[SourcePart]:
    """The images in parts that may be read independently: the shards of a store, or `size` images each.

    Images are listed as the parts are requested.
    """
    match source:
        case Store():
            return map(partial(_shard_part, source), source.manifest.shards)
        case ImageStream():
            return _image_parts(iter(source), size)
    raise InputError("`ray` takes images, or one feature store: score each store by itself.")


def open_part(content: bytes) -> Source:
    """The images of a part."""
    if not content.startswith(b"{"):
        rows = unpack_rows(content)
        return as_source([from_reference(row.id, row.source or "", row.label, row.domain) for row in rows])
    shard = json.loads(content)
    return Store(open_folder(shard["store"]), Manifest.of(shard["manifest"]))


def _shard_part(store: Store, record: ShardRecord) -> SourcePart:
    manifest = asdict(replace(store.manifest, shards=(record,)))
    content = json.dumps({"store": store.folder.address, "manifest": manifest})
    return SourcePart(record.images, hash_value([record.index_hash, record.features_hash]), content.encode())


def _image_parts(images: Iterator[ImageItem], size: int) -> Iterator[SourcePart]:
    while rows := [PlannedImage.of(item) for item in islice(images, size)]:
        if missing := next((row.id for row in rows if row.source is None), None):
            raise InputError(f"The image {missing!r} is not a file, so other processes cannot read it.")
        yield SourcePart(len(rows), hash_value(rows), pack_rows(rows))


def names_no_model(source: Source) -> bool:
    """Whether there are features of which nothing says what model made them."""
    return any(isinstance(holder, Features) for holder in _holders(source))


def is_unlabelled(source: Source) -> bool:
    """Whether it is known, without images being listed, that there are some and none has a class."""
    if isinstance(source, Features):
        return source.labels is None
    items = iter(source.listed or ()) if isinstance(source, ImageStream) else items_of(source)
    first = next(items, None)
    return first is not None and first.label is None and all(item.label is None for item in items)


def labelled_images(images: Any, domains: bool = False, classes: Sequence[str] = ()) -> list[ImageItem]:
    """Labelled images: a folder with one subfolder per class (or domain, then class), or what `load_images` takes.

    `classes` are what the labels of `LabelledFeatures` count in, if they are numbers.
    """
    if isinstance(images, Features):
        return images.items(classes)
    if isinstance(images, list) and images and all(isinstance(item, ImageItem) for item in images):
        return images
    is_path = isinstance(images, (str, os.PathLike))
    is_folder = is_path and (is_folder_url(images) if is_url(images) else Path(images).expanduser().is_dir())
    return labelled_folders(images, domains) if is_folder and not _is_store(images) else load_images(images)


def labelled_folders(path: str | os.PathLike[str], domains: bool = False) -> list[ImageItem]:
    """The images of `path/CLASS/`, or with `domains` of `path/DOMAIN/CLASS/`, labelled with the folders' names.

    Class folders are searched recursively. A class folder without images is an error, as are images outside the class
    folders: what is left out unseen would falsify every number computed from the rest.
    """
    if is_url(path):
        return remote_folders(path, domains)
    return local_folders(user_path(path), domains)


def with_unique_ids(items: list[ImageItem]) -> list[ImageItem]:
    """An image that is given twice keeps both places; the second is called "name (2)"."""
    return list(ImageStream(lambda: iter(items)))


def _holders(source: Source) -> Sequence[Source]:
    return source.holders if isinstance(source, Rows) else [source]


def _of_list(images: list[Any]) -> Source:
    """The elements; what is wrong with one, as far as its type or name shows, is an error at once."""
    parts: list[Part] = []
    stored, others = False, OtherFiles()
    for position, element in enumerate(images):
        part: Part | None
        if isinstance(element, (str, os.PathLike)):
            _from_path(element, OtherFiles(), alone=False)
            if _is_store(element):
                element = Store.open(os.fspath(element))
                part = element.items
            else:
                part = partial(_from_path, element, others, alone=False)
        else:
            part = _part_of(element)
        if part is None:
            raise InputError(f"images[{position}] is {_describe(element)}. Give {ACCEPTED}.")
        parts.append(part)
        stored = stored or isinstance(element, Store) or (isinstance(element, ImageItem) and element.row is not None)
    listed = images if all(isinstance(element, ImageItem) for element in images) else None
    stream = _of_parts(parts, listed, others)
    return Rows(list(stream)) if stored else stream


def _of_parts(
    parts: list[Part], listed: list[ImageItem] | None = None, others: OtherFiles | None = None
) -> ImageStream:
    counts = [len(part) for part in parts if isinstance(part, list)]
    count = sum(counts) if len(counts) == len(parts) else None
    return ImageStream(lambda: _from_parts(parts), count, listed=listed, others=others)


def _stream_of(items: list[ImageItem]) -> ImageStream:
    return ImageStream(lambda: iter(items), len(items), listed=items)


def _are_features(value: Any) -> bool:
    if is_tensor(value):
        return bool(value.ndim == 2 and value.is_floating_point())
    return isinstance(value, np.ndarray) and value.ndim == 2 and np.issubdtype(value.dtype, np.floating)


def _is_store(path: str | os.PathLike[str]) -> bool:
    is_image = not is_url(path) and Path(path).suffix.lower() in EXTENSIONS
    return not is_image and is_store(os.fspath(path))


def _from_parts(parts: list[Part]) -> Iterator[ImageItem]:
    number = 0
    for part in parts:
        for item in part() if callable(part) else part:
            yield item if isinstance(item, ImageItem) else ImageItem(f"image {number}", item)
            number += 1


def _from_path(given: str | os.PathLike[str], others: OtherFiles, *, alone: bool) -> Iterator[ImageItem]:
    """The images of a path, pattern or URL; what is wrong with its text is an error now."""
    text = os.fspath(given)
    if not isinstance(text, str) or not text:
        raise InputError(f"images contains {text!r}, which is not a path. Give {ACCEPTED}.")
    return url_images(text, others, alone=alone) if is_url(text) else path_images(text, others, alone=alone)


def _part_of(value: Any) -> Part | None:
    """The images of something that is not a path, or None if it is something else, such as a list."""
    if isinstance(value, ImageItem):
        return [value]
    if isinstance(value, ImageStream):
        return value.__iter__
    if isinstance(value, Store):
        return value.items
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
        return list(tensor_images(value))
    if hasattr(value, "__array__") and hasattr(value, "dtype"):  # NumPy arrays, pandas columns
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # one on another device
            raise InputError(f"images is {_describe(value)}, which cannot become a NumPy array: {error}") from error
        return None if array.dtype.kind in "OUS" else list(array_images(array))  # an array of paths or images is a list
    return None


def _describe(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"of type {name}"


def _class_name(label: Any, row: int, classes: Sequence[str]) -> str:
    if isinstance(label, str):
        return label
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(classes):
            return classes[label]
        there_are = f"there are {len(classes)} classes" if classes else "no class list is given"
        raise InputError(f"labels[{row}] is {label}, a position in the class list, counted from 0, but {there_are}.")
    raise InputError(f"labels[{row}] is {label!r}: give a class name, or the position of the class in the class list.")


def _domain(domain: Any, row: int) -> str:
    if isinstance(domain, str):
        return domain
    raise InputError(f"domains[{row}] is {domain!r}, not a name.")
