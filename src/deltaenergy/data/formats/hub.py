"""Images of a hub data set: a `datasets.Dataset`, known by its shape, so that the library need not be imported.

Rows are read when their image is needed. The library is asked for the encoded bytes rather than for pictures, so
that a broken image is skipped like any other instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from deltaenergy.data.decode import ImageSource, UnreadableImage
from deltaenergy.data.formats.table import (
    DOMAIN_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    as_list,
    find_column,
    optional_text,
    table_images,
)
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError


def is_dataset(images: Any) -> bool:
    """Whether this is a data set of the datasets library, streamed or not."""
    return hasattr(images, "features") and hasattr(images, "column_names")


def is_dataset_dict(images: Any) -> bool:
    """Whether this is a dictionary of splits, as `load_dataset` gives without `split=`."""
    return isinstance(images, Mapping) and bool(images) and all(is_dataset(split) for split in images.values())


def dataset_images(dataset: Any) -> Iterator[ImageItem]:
    """One item per row, labelled with the class names that the data set's features hold."""
    if not hasattr(dataset, "__len__"):
        raise InputError("A streamed data set has no length. Load it without streaming=True, or give a list of images.")
    features = dataset.features
    columns = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    if not columns:
        if find_column(features, PATH_COLUMNS) is None:
            raise InputError(
                f"The data set has neither an image column nor one with paths. Its columns are: "
                f"{', '.join(map(repr, features))}."
            )
        yield from table_images(dataset)
        return
    if not len(dataset):
        raise InputError("The data set has no rows.")
    column = find_column(columns, PATH_COLUMNS) or columns[0]
    labels, domains = (_texts(dataset, find_column(features, known)) for known in (LABEL_COLUMNS, DOMAIN_COLUMNS))
    encoded = dataset.cast_column(column, type(features[column])(decode=False))
    for row, (label, domain) in enumerate(zip(labels, domains)):
        yield ImageItem(f"image {row}", _Row(encoded, column, row), label, domain)


def hub_images(name: str) -> list[ImageItem]:
    """The images of `hf:OWNER/NAME` or `hf:OWNER/NAME:SPLIT`, loaded from the local cache or the hub.

    Ids begin with the name as it was given, so that images of several data sets can stand in one feature store.
    """
    path, _, split = name.removeprefix("hf:").partition(":")
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name!r} needs the datasets library: pip install 'deltaenergy[hub]'.") from None
    try:
        loaded = datasets.load_dataset(path, split=split or None)
    # The library raises its own errors, those of the network, and ValueError for an unknown split.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name!r} cannot be loaded from the hub: {reason}") from error
    if is_dataset_dict(loaded):
        raise InputError(f"{name!r} has several splits. Choose one: {', '.join(f'{name}:{key}' for key in loaded)}.")
    return [replace(item, id=f"{name}/{item.id}") for item in dataset_images(loaded)]


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The image in one row, read when called."""

    dataset: Any
    column: str
    row: int

    @property
    def stamp(self) -> str | None:
        """The data set's own fingerprint and the row: tells a feature store that nothing changed."""
        fingerprint = getattr(self.dataset, "_fingerprint", None)
        return None if fingerprint is None else f"{fingerprint}, row {self.row}"

    def __call__(self) -> ImageSource:
        value = self.dataset[self.row][self.column]
        if isinstance(value, Image.Image):
            return value
        if isinstance(value, Mapping):
            if value.get("bytes"):
                return bytes(value["bytes"])
            if value.get("path"):
                return Path(value["path"])
        raise UnreadableImage("the data set holds no image in this row")


def _texts(dataset: Any, column: str | None) -> list[str | None]:
    if column is None:
        return [None] * len(dataset)
    names = getattr(dataset.features[column], "names", None)
    values = as_list(dataset[column])
    if names is None:
        return [optional_text(value) for value in values]
    # Hidden labels of test splits are −1 or None.
    return [names[value] if value is not None and value >= 0 else None for value in values]
