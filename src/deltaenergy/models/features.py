"""Unit features that a user gives as an array: checked, and as torch takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.core.text import counted
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.models.base import Model


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
    tensor = torch.as_tensor(features).detach().float()
    if tensor.shape[1] != model.feature_dim:
        raise InputError(
            f"{what} have {tensor.shape[1]} columns, but model {model.name!r} gives {model.feature_dim}. "
            "Were they computed with another model?"
        )
    bad = ~torch.isfinite(tensor).all(dim=1)
    if bad.any():
        found = torch.nonzero(bad).flatten().tolist()
        first = found[0] if rows is None else rows[found[0]]
        raise InputError(f"{what} have NaN or infinity in {counted(len(found), 'row')}, first in row {first}.")
    norms = tensor.norm(dim=1)
    if len(norms) and (norms - 1).abs().max() > 1e-2:
        worst = int((norms - 1).abs().argmax())
        row = worst if rows is None else rows[worst]
        raise InputError(
            f"{what} must have unit length, but row {row} has length {norms[worst]:.3g}. Divide each row by its norm."
        )
    return tensor
