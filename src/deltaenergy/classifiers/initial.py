"""Initial values that several methods share, drawn from a generator of our own."""

from __future__ import annotations

import torch
from torch import nn


def set_linear(generator: torch.Generator, *weights: nn.Parameter) -> None:
    """Weights (rows, columns) ~ U(−1/√columns, 1/√columns), as torch's Linear begins, one after the other."""
    for weight in weights:
        bound = weight.shape[1] ** -0.5
        # Drawn on the host, so that every device starts alike.
        weight.data.copy_((torch.rand(*weight.shape, generator=generator) * 2 - 1) * bound)
