"""Run a vision transformer's blocks: learned tokens in them, patch features by the value path, gradients to both.

    x_0 = ln_pre([class, patches] + positions, p_0),   x_{b+1} = block_b(x_b, its last n states replaced by p_b)

The n tokens p_b are at the end and have no positions (Jia et al., VPT, ECCV 2022; as in MaPLe and PromptSRC); blocks
beyond the last p_b let them flow. The image feature is the projected class token of the last block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from deltaenergy.models.towers.blocks import ACTIVATION_BUDGET, bytes_per_token, finish_block, heads, masked_softmax
from deltaenergy.models.towers.text import unit


@dataclass(frozen=True)
class VisionOutputs:
    """The output of a run: unit image features (B, D) and, on request, unit patch features (B, P, D), the patch states
    (B, P, H) that they are projected from, and the attention weights of each block (B, heads, tokens, tokens), for the
    last block only those of the class token (B, heads, 1, tokens).
    """

    features: torch.Tensor
    patches: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    attention: tuple[torch.Tensor, ...] = ()


class VisionTower:
    """The image encoder of a model in transformers' CLIP layout.

    Args:
        transformer: transformers' CLIPVisionModel (`embeddings`, `pre_layrnorm`, `encoder.layers`, `post_layernorm`).
        projection: state of the class token -> feature.
        finish: projected vector -> unit feature.
        activation_budget: bytes of activations to keep for the backward pass; larger batches keep only the input of
            each block, and compute the rest again.
    """

    def __init__(
        self,
        transformer: Any,
        projection: nn.Module,
        *,
        finish: Callable[[torch.Tensor], torch.Tensor] = unit,
        activation_budget: int = ACTIVATION_BUDGET,
    ) -> None:
        self.transformer = transformer
        self.projection = projection
        self.finish = finish
        self.activation_budget = activation_budget
        self._layers: list[Any] = list(transformer.encoder.layers)
        positions, width = transformer.embeddings.position_embedding.weight.shape
        self.width = int(width)
        self.patch_count = int(positions) - 1
        self.blocks = len(self._layers)
        self.patch_map: torch.Tensor | None = None

    def run(
        self,
        pixels: torch.Tensor,
        prompts: torch.Tensor | None = None,
        *,
        patches: bool = False,
        hidden: bool = False,
        attention: bool = False,
    ) -> VisionOutputs:
        """Pixels (B, 3, side, side) -> features, with tokens `prompts` in the tower: (J, n, H) for the first J
        blocks, (1, n, H) for only the first. Differentiable with respect to both, and to `attention` if it is kept.
        """
        weights: list[torch.Tensor] | None = [] if attention else None
        x = self.transformer.embeddings(pixels)
        tokens: list[torch.Tensor] = []
        if prompts is not None and prompts.numel():
            tokens = [block.expand(len(x), -1, -1) for block in prompts.to(x)]
            x = torch.cat([x, tokens[0]], dim=1)
        x = self.transformer.pre_layrnorm(x)
        # Recomputed attention would not be the tensor that gradients are requested for.
        recompute = self._must_recompute(x) and not attention
        for number, layer in enumerate(self._layers):
            if 0 < number < len(tokens):
                x = torch.cat([x[:, : 1 + self.patch_count], tokens[number]], dim=1)
            if number + 1 < self.blocks:
                if recompute:
                    x = checkpoint(_run_block, layer, x, use_reentrant=False)
                else:
                    x = _run_block(layer, x, weights=weights)
        # Only the class token of the last block's output is used; patches take the value path instead.
        last = _run_block(self._layers[-1], x, asking=1, weights=weights)
        features = self.project(self.transformer.post_layernorm(last[:, 0]))
        kept = tuple(weights or ())
        if not (patches or hidden):
            return VisionOutputs(features, attention=kept)
        states = self._value_path(x[:, 1 : 1 + self.patch_count])
        mapped = states if self.patch_map is None else states @ self.patch_map.T.to(states)
        return VisionOutputs(features, self.project(mapped) if patches else None, states if hidden else None, kept)

    def with_patch_map(self, matrix: torch.Tensor) -> VisionTower:
        """The same tower with `matrix` (H, H) on the patch states before they are projected."""
        other = copy.copy(self)
        other.patch_map = matrix
        return other

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """States after the post-norm (..., H) -> unit features (..., D)."""
        return self.finish(self.projection(hidden))

    def recomputes(self, images: int, tokens: int = 0) -> bool:
        """Whether a run with this many learned tokens keeps only the input of each block for its backward pass."""
        return self._whole_bytes(images * (1 + self.patch_count + tokens)) > self.activation_budget

    def kept_bytes(self, images: int, tokens: int = 0) -> int:
        """About how much such a run keeps for its backward pass."""
        seen = images * (1 + self.patch_count + tokens)
        if not self.recomputes(images, tokens):
            return self._whole_bytes(seen)
        # The input of each block, and all of the block that is being computed again.
        return seen * self.blocks * self.width * self._element_size + self._whole_bytes(seen) // self.blocks

    def _value_path(self, x: torch.Tensor) -> torch.Tensor:
        """Patch states after the post-norm, from the last block's input x without its attention weights:
        v = out_proj(W_v ln_1(x) + b_v); y = x + v; y + mlp(ln_2(y)) (Miyai et al., GL-MCM, IJCV 2025; after MaskCLIP,
        ECCV 2022).
        """
        last = self._layers[-1]
        y = finish_block(last, x, last.self_attn.v_proj(last.layer_norm1(x)))
        states: torch.Tensor = self.transformer.post_layernorm(y)
        return states

    def _must_recompute(self, x: torch.Tensor) -> bool:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return False
        return self._whole_bytes(x.shape[0] * x.shape[1]) > self.activation_budget

    def _whole_bytes(self, tokens: int) -> int:
        """Activations of this many tokens in all blocks."""
        return tokens * bytes_per_token(self.blocks, self.width, self._element_size)

    @property
    def _element_size(self) -> int:
        return int(self.transformer.embeddings.position_embedding.weight.element_size())


def _run_block(
    layer: Any, x: torch.Tensor, asking: int | None = None, weights: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """The block's output (B, tokens, H) at the first `asking` tokens, by default at all.

    With a list `weights`, the attention weights are computed and appended to it.
    """
    h = layer.layer_norm1(x)
    attention = layer.self_attn
    queries = heads(layer, attention.q_proj(h[:, :asking]))
    keys, values = heads(layer, attention.k_proj(h)), heads(layer, attention.v_proj(h))
    if weights is None:
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, scale=attention.scale)
    else:
        weights.append(masked_softmax(queries @ keys.transpose(-1, -2) * attention.scale, None))
        attended = weights[-1] @ values
    return finish_block(layer, x[:, :asking], attended.transpose(1, 2).flatten(2))
