"""Images of a hub data set: a `datasets.Dataset`, known by its shape, so that the library need not be imported.

Rows are read when their image is needed. The library is asked for the encoded bytes rather than for pictures, so
that a broken image is skipped like any other instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from deltaenergy.data.decode import ImageSource, UnreadableImage
from deltaenergy.data.items import ImageItem
from deltaenergy.data.table import (
    DOMAIN_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    as_list,
    find_column,
    optional_text,
    table_images,
)
from deltaenergy.errors import InputError


def is_dataset(images: Any) -> bool:
    """Whether this is a data set of the datasets library, streamed or not."""
    return hasattr(images, "features") and hasattr(images, "column_names")


def is_dataset_dict(images: Any) -> bool:
    """Whether this is a dictionary of splits, as `load_dataset` gives without `split=`."""
    return isinstance(images, Mapping) and bool(images) and all(is_dataset(split) for split in images.values())


def dataset_images(dataset: Any) -> list[ImageItem]:
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
        return table_images(dataset)
    if not len(dataset):
        raise InputError("The data set has no rows.")
    column = find_column(columns, PATH_COLUMNS) or columns[0]
    labels, domains = (_texts(dataset, find_column(features, known)) for known in (LABEL_COLUMNS, DOMAIN_COLUMNS))
    encoded = dataset.cast_column(column, type(features[column])(decode=False))
    return [
        ImageItem(f"image {row}", _Row(encoded, column, row), label, domain)
        for row, (label, domain) in enumerate(zip(labels, domains))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The image in one row, read when called."""

    dataset: Any
    column: str
    row: int

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
