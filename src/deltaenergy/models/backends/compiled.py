"""torch.compile on a GPU: the same tower, fused into fewer kernels when it first runs. Nothing is kept on disk."""

from __future__ import annotations

import torch

from deltaenergy.models.backends.base import Engine, ImageTower
from deltaenergy.models.base import TowerModel


class CompiledEngine(Engine):
    """The tower with and without patches, each compiled when it is first asked for."""

    def __init__(self, model: TowerModel) -> None:
        self._towers = {
            patches: torch.compile(ImageTower(model, patches=patches).eval(), dynamic=True) for patches in (False, True)
        }

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        """Compute in the model's precision."""
        with torch.no_grad():
            found: tuple[torch.Tensor, ...] = self._towers[patches](pixels)
        return found
