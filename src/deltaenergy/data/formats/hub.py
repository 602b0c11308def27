"""Images of a dataset of the Hugging Face Hub: a `datasets.Dataset`, known by its shape, so the library need not be
imported.

Rows are read when their image is needed. The library gives the encoded bytes, not decoded images, so
a damaged image is skipped like any other instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from PIL import Image

from deltaenergy.data.file import file_at
from deltaenergy.data.formats.parquet import cell_content
from deltaenergy.data.formats.table import (
    DOMAIN_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    find_column,
    optional_text,
    table_images,
)
from deltaenergy.data.items import Content, ImageItem, Lazy
from deltaenergy.errors import InputError, first_line


def is_dataset(images: Any) -> bool:
    """Whether this is a dataset of the datasets library, streamed or not."""
    return hasattr(images, "features") and hasattr(images, "column_names")


def is_dataset_dict(images: Any) -> bool:
    """Whether this is a dictionary of splits, as `load_dataset` gives without `split=`."""
    return isinstance(images, Mapping) and bool(images) and all(is_dataset(split) for split in images.values())


def dataset_images(dataset: Any) -> Iterator[ImageItem]:
    """One image per row, labelled with the class names that the dataset's features contain."""
    if not hasattr(dataset, "__len__"):
        raise InputError("A streamed dataset has no length. Load it without streaming=True, or give a list of images.")
    features = dataset.features
    columns = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    label, domain = (find_column(features, known) for known in (LABEL_COLUMNS, DOMAIN_COLUMNS))
    if not columns:
        path = find_column(features, PATH_COLUMNS)
        if path is None:
            raise InputError(
                f"The dataset has neither an image column nor one with paths. Its columns are: "
                f"{', '.join(map(repr, features))}."
            )
        import pyarrow as pa

        yield from table_images(pa.table({name: _texts(dataset, name) for name in (path, label, domain) if name}))
        return
    if not len(dataset):
        raise InputError("The dataset has no rows.")
    column = find_column(columns, PATH_COLUMNS) or columns[0]
    encoded = dataset.cast_column(column, type(features[column])(decode=False))
    # The dataset's own fingerprint and the row show that nothing changed.
    fingerprint = getattr(dataset, "_fingerprint", None)
    for row, (class_name, domain_name) in enumerate(zip(_texts(dataset, label), _texts(dataset, domain))):
        stamp = None if fingerprint is None else f"{fingerprint}, row {row}"
        yield ImageItem(f"image {row}", Lazy(partial(_read, encoded, column, row), stamp), class_name, domain_name)


def hub_images(name: str) -> list[ImageItem]:
    """The images of `hf:OWNER/NAME` or `hf:OWNER/NAME:SPLIT`, loaded from the local cache or the Hugging Face Hub.

    Ids begin with the name as it was given, so images of several datasets can be in one feature store.
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
        raise InputError(f"{name!r} cannot be loaded from the Hugging Face Hub: {first_line(error)}") from error
    if is_dataset_dict(loaded):
        raise InputError(f"{name!r} has several splits. Choose one: {', '.join(f'{name}:{key}' for key in loaded)}.")
    return [replace(item, id=f"{name}/{item.id}") for item in dataset_images(loaded)]


def _read(dataset: Any, column: str, row: int) -> Content:
    cell = dataset[row][column]
    return cell if isinstance(cell, Image.Image) else cell_content(cell, file_at)


def _texts(dataset: Any, column: str | None) -> list[str | None]:
    if column is None:
        return [None] * len(dataset)
    names = getattr(dataset.features[column], "names", None)
    values = list(dataset[column])
    if names is None:
        return [optional_text(value) for value in values]
    # Hidden labels of test splits are −1 or None.
    return [names[value] if value is not None and value >= 0 else None for value in values]
