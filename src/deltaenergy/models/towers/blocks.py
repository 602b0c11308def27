"""One pre-norm transformer block of transformers' CLIP modules, in the parts that both towers run themselves.

x ← x + out_proj(attention(ln_1 x)),   x ← x + mlp(ln_2 x)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

# Bytes of activations to keep for the backward pass; beyond this, they are computed again.
ACTIVATION_BUDGET = 2**30
# Activations of one token in one block, in multiples of the width: norms, q, k, v, attention, MLP (4 × twice).
KEPT_PER_BLOCK = 18


def heads(layer: Any, projected: torch.Tensor) -> torch.Tensor:
    """(B, tokens, W) -> (B, heads, tokens, d)."""
    return projected.view(*projected.shape[:-1], -1, layer.self_attn.head_dim).transpose(1, 2)


def finish_block(layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The rest of a block after attention: its output projection and the MLP, each added to the residual."""
    x = x + layer.self_attn.out_proj(attended)
    result: torch.Tensor = x + layer.mlp(layer.layer_norm2(x))
    return result


def bytes_per_token(layers: int, width: int, element_size: int) -> int:
    """What the backward pass keeps of one token over all blocks."""
    return layers * KEPT_PER_BLOCK * width * element_size


def run_blocks(
    layers: Sequence[Any],
    x: torch.Tensor,
    hidden: torch.Tensor | None,
    deep: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> torch.Tensor:
    """States (N, L, W) through all blocks; `hidden` masks attention.

    Before block b = 1, 2, … the states at each row's `places` (N, M) are replaced by `deep[b − 1]`.
    """
    for number, layer in enumerate(layers):
        x = replace_states(x, number, deep, places)
        h = layer.layer_norm1(x)
        attention = layer.self_attn
        q, k, v = (heads(layer, f(h)) for f in (attention.q_proj, attention.k_proj, attention.v_proj))
        weights = masked_softmax(q @ k.transpose(-1, -2) * attention.scale, hidden)
        x = finish_block(layer, x, (weights @ v).transpose(1, 2).flatten(2))
    return x


def replace_states(x: torch.Tensor, block: int, deep: torch.Tensor | None, places: torch.Tensor | None) -> torch.Tensor:
    """The states that enter a block, with those at `places` replaced by `deep`, if any."""
    if deep is None or places is None or not 0 < block <= len(deep):
        return x
    rows = torch.arange(len(x), device=x.device)
    return x.index_put((rows[:, None], places), deep[block - 1].expand(len(x), -1, -1))


def masked_softmax(scores: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Softmax without the `hidden` entries, in at least float32."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return torch.softmax(wide, dim=-1).to(scores.dtype)
