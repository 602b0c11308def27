"""Unit features of whatever a user gives: rows of an array, which are checked, a feature store, or images to encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model, require_towers
from deltaenergy.models.encoding import STORED_BATCH, EncodedBatch
from deltaenergy.store.store_pass import StorePass, names_a_store, pass_over


def feature_batches(
    model: Model,
    images: Any,
    *,
    patches: bool = False,
    batch_size: int = 32,
    progress: Progress | None = None,
    who: str = "scoring",
) -> Iterator[EncodedBatch]:
    """Unit features, batch by batch: rows of an array, of a feature store that `model` made, or of images encoded now.

    Wrong arguments raise at once; images are read as batches are asked for.
    """
    if is_feature_array(images):
        return _array_batches(model, images, progress)
    stored = images if isinstance(images, StorePass) else None
    if names_a_store(images):
        size = batch_size if patches else max(batch_size, STORED_BATCH)
        stored = pass_over(images, model, patches=patches, size=size)
    if stored is not None:
        return _store_batches(model, stored, progress)
    return require_towers(model, who).stream(images, patches=patches, batch_size=batch_size, progress=progress)


def _array_batches(model: Model, features: Any, progress: Progress | None) -> Iterator[EncodedBatch]:
    for start in range(0, len(features), STORED_BATCH):
        rows = features[start : start + STORED_BATCH]
        block = check_features(rows, model, rows=range(start, start + len(rows)))
        items = [ImageItem(f"row {start + i}", b"") for i in range(len(block))]
        yield EncodedBatch(items, None, block.to(model.device), None, [])
        if progress is not None:
            progress(start + len(block), len(features))


def _store_batches(model: Model, stored: StorePass, progress: Progress | None) -> Iterator[EncodedBatch]:
    done = 0
    for part in stored:
        features = torch.from_numpy(part.features).to(model.device)
        patches = None if part.patches is None else torch.from_numpy(part.patches).to(model.device)
        yield EncodedBatch(part.items, None, features, patches, part.unreadable)
        done += len(part.items) + len(part.unreadable)
        if progress is not None:
            progress(done, stored.images)


def is_feature_array(images: Any) -> bool:
    """Whether `images` is a 2-D float array or tensor, and so stands for features, not images."""
    if isinstance(images, torch.Tensor):
        return images.ndim == 2 and images.is_floating_point()
    return isinstance(images, np.ndarray) and images.ndim == 2 and np.issubdtype(images.dtype, np.floating)


def native_array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers as torch takes them: neither negative strides nor foreign byte order, nor long doubles.

    What must not be written to is copied, since a tensor cannot say so.
    """
    wide = values.dtype.kind == "f" and values.dtype.itemsize > 8
    values = values.astype(np.float64 if wide else values.dtype.newbyteorder("="), copy=False)
    return values.copy() if not values.flags.writeable or any(stride < 0 for stride in values.strides) else values


def check_features(
    features: Any, model: Model, what: str = "features", rows: Sequence[int] | None = None
) -> torch.Tensor:
    """Features as float32, or an error that says what is wrong with them.

    There they are called `what`; `rows` are the user's numbers of the rows, where only some are given.
    """
    if isinstance(features, np.ndarray):
        features = native_array(features)
    tensor = torch.as_tensor(features).float()
    if tensor.shape[1] != model.feature_dim:
        raise InputError(
            f"{what} have {tensor.shape[1]} columns, but model {model.name!r} gives {model.feature_dim}. "
            "Were they computed with another model?"
        )
    bad = ~torch.isfinite(tensor).all(dim=1)
    if bad.any():
        found = torch.nonzero(bad).flatten().tolist()
        first = found[0] if rows is None else rows[found[0]]
        raise InputError(f"{what} hold NaN or infinity in {len(found)} row(s), the first is row {first}.")
    norms = tensor.norm(dim=1)
    if len(norms) and (norms - 1).abs().max() > 1e-2:
        worst = int((norms - 1).abs().argmax())
        row = worst if rows is None else rows[worst]
        raise InputError(
            f"{what} must have unit length, but row {row} has length {norms[worst]:.3g}. Divide each row by its norm."
        )
    return tensor
