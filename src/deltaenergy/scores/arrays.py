"""Tensors or NumPy arrays in, the same out; and one message for similarities that no score can use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.errors import InputError

# A product whose number of rows is a multiple of this gives a row the same bits, wherever it stands.
EVEN = 16
Array = TypeVar("Array", torch.Tensor, npt.NDArray[Any])
P = ParamSpec("P")


def array_function(
    function: Callable[Concatenate[torch.Tensor, P], torch.Tensor],
) -> Callable[Concatenate[Any, P], Any]:
    """Make `function` of a float tensor (N, K) accept arrays too, check its input, and name NaN rows.

    Half precision is computed in float32. The check for NaN looks at the N results, not at the N × K inputs, since
    every score carries a NaN or an infinity among its inputs through to its result.
    """

    @functools.wraps(function)
    def wrapper(similarities: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        is_array = isinstance(similarities, np.ndarray)
        tensor = torch.as_tensor(similarities)
        if tensor.ndim != 2:
            raise InputError(f"similarities must be an (images, classes) array, got shape {tuple(tensor.shape)}.")
        if tensor.shape[1] == 0:
            raise InputError("similarities have no column: there must be at least one class.")
        if tensor.dtype not in (torch.float32, torch.float64):
            tensor = tensor.float()
        result = function(tensor, *args, **kwargs)
        check_finite(result, tensor, "similarities")
        return result.numpy() if is_array else result

    return wrapper


def even(rows: int) -> int:
    """The largest multiple of `EVEN` up to `rows`, but not none."""
    return max(EVEN, rows // EVEN * EVEN)


def check_finite(result: torch.Tensor, inputs: torch.Tensor, name: str) -> None:
    """Raise `InputError` with the rows of `inputs` that hold NaN or infinity, if they made `result` not finite."""
    if torch.isfinite(result).all():
        return
    bad = torch.nonzero(~torch.isfinite(inputs).flatten(1).all(dim=1)).flatten().tolist()
    if bad:
        raise InputError(f"{name} hold NaN or infinity in {len(bad)} row(s), the first is row {bad[0]}.")
