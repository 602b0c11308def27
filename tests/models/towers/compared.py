"""What the tests of prompts share: text towers with random weights in any precision, and random contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.text import TextTower
from tests.checkpoints import write_clip

NAMES = ["dog", "cat", "red car", "a photo of the blue dog", "x", "sketch of zebra", "cat"]


def normalised(vectors: torch.Tensor) -> torch.Tensor:
    return nn.functional.normalize(vectors, dim=-1)


class Towers:
    """Three-block text towers, their checkpoints written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, dtype: torch.dtype, activation: str = "quick_gelu") -> TextTower:
        from transformers import AutoTokenizer, CLIPModel

        folder = self.folder / activation
        if not folder.exists():
            write_clip(folder, layers=3, hidden_act=activation)
        module: Any = CLIPModel.from_pretrained(folder).to(dtype).eval().requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return CausalTextTower(module.text_model, module.text_projection, tokenizer, finish=normalised)


def random_context(tower: TextTower, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, tower.width, generator=generator, dtype=torch.float64).to(tower.embedding_weight) * 0.3
