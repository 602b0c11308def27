"""Random numbers of initial values and training steps, from the training's own generator, never torch's global one.

Its state is part of a checkpoint, so a run that was killed and resumed draws the same. Numbers are drawn on the CPU, so
they are the same for every device.
"""

from __future__ import annotations

import torch
from torch import nn

INITIAL_DEVIATION = 0.02


def set_linear(generator: torch.Generator, *weights: nn.Parameter) -> None:
    """Weights (rows, columns) ~ U(−1/√columns, 1/√columns), as in torch's Linear, one after the other."""
    for weight in weights:
        bound = weight.shape[1] ** -0.5
        weight.data.copy_((torch.rand(*weight.shape, generator=generator) * 2 - 1) * bound)


def set_normal(generator: torch.Generator, *values: nn.Parameter) -> None:
    """Values ~ N(0, 0.02²), as contexts and tokens start, one after the other."""
    for value in values:
        value.data.copy_(INITIAL_DEVIATION * torch.randn(value.shape, generator=generator))


def normal_like(tensor: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Standard normal noise of the shape of `tensor`."""
    return torch.randn(tensor.shape, generator=_given(generator)).to(tensor)


def dropout(x: torch.Tensor, share: float, generator: torch.Generator | None) -> torch.Tensor:
    """`x` with about `share` of its entries set to 0 and the others divided by 1 − share."""
    if share == 0:
        return x
    kept = torch.rand(x.shape, generator=_given(generator)) >= share
    return x * kept.to(x) / (1 - share)


def _given(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        raise ValueError("a training step needs the training's generator: set classifier.generator")
    return generator
