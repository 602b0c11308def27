"""Estimate the cost of a training before it starts: too much memory, or work that takes days."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deltaenergy.errors import InputError

# Floating-point operations per second of a few cores, and the hours from which a run counts as long.
CPU_SPEED = 1e11
LONG_HOURS = 3.0


@dataclass(frozen=True)
class CostEstimate:
    """The expected cost of a training.

    Attributes:
        memory: bytes by use, such as {"activations": …}.
        step: what one step runs, in words.
        operations: floating-point operations of the whole training; 0 if unknown.
        instead: the remedy if it is too much.
    """

    memory: Mapping[str, int]
    step: str
    operations: float
    instead: str

    def refuse_beyond_memory(self, method: str, device: torch.device) -> None:
        """Raise `InputError` if the training does not fit into memory."""
        needed, there = sum(self.memory.values()), memory_of(device)
        if needed > there:
            parts = ", ".join(f"{size / 2**30:,.1f} GB for {what}" for what, size in self.memory.items())
            raise InputError(
                f"{method} would take about {needed / 2**30:,.1f} GB of memory ({parts}), and this machine has "
                f"{there / 2**30:,.1f} GB. A step runs {self.step}. {self.instead}"
            )

    def warn_if_long(self, method: str, device: torch.device) -> None:
        """Warn if the training will take long on a CPU."""
        hours = self.operations / CPU_SPEED / 3600
        if device.type != "cpu" or hours < LONG_HOURS:
            return
        shown = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
        warnings.warn(
            f"{method} is work for a GPU here: a step runs {self.step}, {self.operations:.1e} operations in all, which "
            f"is about {shown} at {CPU_SPEED / 1e9:.0f} GFLOP/s. {self.instead}",
            stacklevel=3,
        )


def memory_of(device: torch.device) -> int:
    """All the memory of the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def tower_operations(tokens: int, blocks: int, width: int, passes: int) -> float:
    """Operations of `tokens` through a transformer whose weights are frozen: 24 W² per token, block and pass.

    Passes are forward, backward (only to activations), and one more if activations are recomputed.
    """
    return 24.0 * width**2 * blocks * tokens * passes
