"""Tensors or NumPy arrays in, the same out; and one message for values that no score can use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.core.arrays import native_array
from deltaenergy.core.specs import bounded
from deltaenergy.core.text import counted
from deltaenergy.errors import InputError

Array = TypeVar("Array", torch.Tensor, npt.NDArray[Any])
P = ParamSpec("P")


class ArrayFunction(Protocol[P]):
    """A function of one row per image: a tensor for a tensor, an array for an array.

    `kernel` is the same without checks, for a Score, whose inputs and settings are already checked.
    """

    kernel: Callable[Concatenate[torch.Tensor, P], torch.Tensor]

    @overload
    def __call__(self, values: torch.Tensor, /, *args: P.args, **kwargs: P.kwargs) -> torch.Tensor: ...
    @overload
    def __call__(self, values: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...


def array_function(function: Callable[Concatenate[torch.Tensor, P], torch.Tensor]) -> ArrayFunction[P]:
    """Make `function` of a float tensor (N, K) also accept arrays, and check its arguments.

    Half precision is computed in float32.
    """
    name = next(iter(inspect.signature(function).parameters))
    in_bounds = bounded(function)

    @functools.wraps(function)
    def wrapper(values: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        result = in_bounds(as_rows(values, name), *args, **kwargs)
        return result.numpy() if isinstance(values, np.ndarray) else result

    wrapper.kernel = function  # type: ignore[attr-defined]
    return cast(ArrayFunction[P], wrapper)


def as_tensor(values: Any, name: str) -> torch.Tensor:
    """A floating-point tensor of at least single precision from a tensor, an array of any strides and byte order,
    or nested lists; raises `InputError` for anything but real numbers.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "fiub":
            raise InputError(f"{name} must be real numbers, got an array of {values.dtype}.")
        values = native_array(values)
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a tensor or an array of numbers, got {type(values).__name__}.") from error
    if tensor.is_complex() or tensor.is_quantized:
        raise InputError(f"{name} must be real numbers, got a tensor of {tensor.dtype}.")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def as_rows(values: Any, name: str, rows: int | None = None) -> torch.Tensor:
    """`as_tensor` for one row of finite numbers per image (N, …), at least one in each."""
    tensor = as_tensor(values, name)
    column, columns = ("dimension", "dimensions") if name == "features" else ("class", "classes")
    if tensor.ndim != 2:
        raise InputError(f"{name} must be an (images, {columns}) array, got shape {tuple(tensor.shape)}.")
    if tensor.shape[1] == 0:
        raise InputError(f"{name} have no column: there must be at least one {column}.")
    if rows is not None and len(tensor) != rows:
        raise InputError(f"{name} must have one row for each of the {rows} images, got {len(tensor)}.")
    # One read-only pass: entries are checked one by one only if their sum is not finite.
    check_finite(tensor.detach().sum(), tensor, name)
    return tensor


def check_finite(result: torch.Tensor, inputs: torch.Tensor, name: str) -> None:
    """Raise `InputError` with the rows of `inputs` that have NaN or infinity, if `result` is not finite."""
    if torch.isfinite(result).all():
        return
    bad = torch.nonzero(~torch.isfinite(inputs).flatten(1).all(dim=1)).flatten().tolist()
    if bad:
        raise InputError(f"{name} have NaN or infinity in {counted(len(bad), 'row')}, first in row {bad[0]}.")
