"""Tensors or NumPy arrays in, the same out, for functions of several arrays; and one message for wrong shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import as_tensor


def tensors(**given: Any) -> list[torch.Tensor]:
    """Each as a floating-point tensor of at least single precision; an error names the one that is none."""
    return [as_tensor(values, name) for name, values in given.items()]


def alike(result: torch.Tensor, given: Any) -> Any:
    """The result as what was given: an array for an array, else a tensor."""
    return result.numpy() if isinstance(given, np.ndarray) else result


def check_shape(name: str, tensor: torch.Tensor, wanted: Sequence[int | str]) -> None:
    """Raise `InputError` unless the shape is as `wanted`: a number must agree, a letter is any number."""
    fits = tensor.ndim == len(wanted) and all(isinstance(w, str) or w == n for w, n in zip(wanted, tensor.shape))
    if not fits:
        shape = ", ".join(map(str, wanted))
        raise InputError(f"{name} must have the shape ({shape}), got {tuple(tensor.shape)}.")
