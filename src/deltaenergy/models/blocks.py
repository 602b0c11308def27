"""One pre-norm transformer block of transformers' CLIP modules, in the parts that both towers run themselves.

x ← x + out_proj(attention(ln_1 x)),   x ← x + mlp(ln_2 x)
"""

from __future__ import annotations

from typing import Any

import torch

# Activations kept for the backward pass, in bytes; beyond this, they are computed again when they are needed.
ACTIVATION_BUDGET = 2**30
# What one token leaves behind in one block, in multiples of the width: norms, q, k, v, attention, MLP (4 × twice).
KEPT_PER_BLOCK = 18


def heads(layer: Any, projected: torch.Tensor) -> torch.Tensor:
    """(B, tokens, W) -> (B, heads, tokens, d)."""
    return projected.view(*projected.shape[:-1], -1, layer.self_attn.head_dim).transpose(1, 2)


def finish_block(layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The rest of a block after attention: its output projection and the MLP, each added to what was there."""
    x = x + layer.self_attn.out_proj(attended)
    result: torch.Tensor = x + layer.mlp(layer.layer_norm2(x))
    return result


def bytes_per_token(layers: int, width: int, element_size: int) -> int:
    """What the backward pass keeps of one token that runs through all blocks."""
    return layers * KEPT_PER_BLOCK * width * element_size
