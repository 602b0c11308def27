"""CLIP's text tower: a causal transformer, pooled at the end token.

Tokens after the end token change nothing, so prompts are cut at the last end token of their batch.

Prompts with learned parts (see `prompts.py`) are run block by block. A causal tower computes the same states for a
common prefix whatever follows. So the prefix is run once, its keys and values are kept in every block, and only the
rest is run for each class, attending to the prefix and to itself:

    softmax([q·K_prefix, q·K_own] / √d) · [V_prefix; V_own]

The rest is packed by length without padding, and the last block computes only the end tokens. Outputs and gradients
equal those of the 77-token pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from deltaenergy.models.towers.blocks import finish_block, heads, masked_softmax, run_blocks
from deltaenergy.models.towers.text import OptionalTensor, TextTower

# Keys and values (B, heads, tokens, d) of one block.
KeysValues = tuple[torch.Tensor, torch.Tensor]


class CausalTextTower(TextTower):
    """The text tower of a model in transformers' CLIP layout (`embeddings`, `encoder.layers`, `final_layer_norm`)."""

    causal = True

    def _look_at(self, transformer: Any, tokenizer: Any) -> None:
        self.max_length = int(transformer.embeddings.position_embedding.weight.shape[0])
        self.frame = ([tokenizer.bos_token_id], [tokenizer.eos_token_id])
        self._layers = list(transformer.encoder.layers)

    def run_tokens(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        # Tokens after the end token are never attended to, so the end token itself serves as padding.
        ids = self._padded(rows, max(map(len, rows)), self.frame[1][0])
        ends = torch.tensor([len(row) - 1 for row in rows], device=ids.device)
        hidden = self.transformer(input_ids=ids).last_hidden_state
        projected: torch.Tensor = self.projection(hidden[torch.arange(len(rows), device=ids.device), ends])
        return projected

    def run_prefix(
        self, embedded: torch.Tensor, deep: torch.Tensor | None = None, places: slice = slice(0)
    ) -> list[KeysValues]:
        """Embedded prefixes (B, n, W) -> their keys and values in every block.

        Before block b = 1, 2, … the states at `places` are replaced by `deep[b − 1]`, if there are any.
        """
        x = embedded + self._positions(torch.arange(embedded.shape[1], device=embedded.device))
        mask = _causal_mask(x.shape[1], x.device)
        kept = []
        for number, layer in enumerate(self._layers):
            if deep is not None and 0 < number <= len(deep):
                own = deep[number - 1].expand(len(x), -1, -1)
                x = torch.cat([x[:, : places.start], own, x[:, places.stop :]], dim=1)
            h = layer.layer_norm1(x)
            keys, values = (heads(layer, project(h)) for project in (layer.self_attn.k_proj, layer.self_attn.v_proj))
            kept.append((keys, values))
            if number + 1 < len(self._layers):  # after the last keys and values nothing attends to the prefix
                queries = heads(layer, layer.self_attn.q_proj(h))
                weights = masked_softmax(queries @ keys.transpose(-1, -2) * layer.self_attn.scale, mask)
                x = finish_block(layer, x, (weights @ values).transpose(1, 2).flatten(2))
        return kept

    def run_behind(
        self, prefix: list[KeysValues], embedded: torch.Tensor, groups: Sequence[tuple[int, int]]
    ) -> torch.Tensor:
        """Unit features (B, classes, D) of the rest after each of B prefixes.

        `embedded` (tokens, W) has the classes one after the other; `groups` are the number of classes by length, in
        order.
        """
        batch, _, behind, _ = prefix[0][0].shape
        places = torch.cat([torch.arange(length).repeat(count) for count, length in groups])
        ends = torch.cat([torch.full((count,), length) for count, length in groups]).cumsum(0) - 1
        ends = ends.to(self.device)
        x = embedded + self._positions(behind + places.to(self.device))
        x = x.expand(batch, -1, -1)
        for number, layer in enumerate(self._layers):
            last = number + 1 == len(self._layers)
            h = layer.layer_norm1(x)
            if last:
                x = x.index_select(1, ends)
            attended = _attend_behind(layer, h, h.index_select(1, ends) if last else h, prefix[number], groups)
            x = finish_block(layer, x, attended)
        return self._features(x)

    def run_whole(
        self, embedded: torch.Tensor, lengths: torch.Tensor, deep: OptionalTensor = None, places: OptionalTensor = None
    ) -> torch.Tensor:
        """Unit features (N, D) of padded prompts (N, L, W), pooled at `lengths − 1`."""
        device = embedded.device
        x = embedded + self._positions(torch.arange(embedded.shape[1], device=device))
        x = run_blocks(self._layers, x, _causal_mask(x.shape[1], device), deep, places)
        return self._features(x[torch.arange(len(x), device=device), lengths - 1])

    def _positions(self, places: torch.Tensor) -> torch.Tensor:
        positions: torch.Tensor = self.transformer.embeddings.position_embedding(places)
        return positions

    def _features(self, ends: torch.Tensor) -> torch.Tensor:
        return self.finish(self.projection(self.transformer.final_layer_norm(ends)))


def _attend_behind(
    layer: Any, h: torch.Tensor, asking: torch.Tensor, prefix: KeysValues, groups: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Attention of packed tokens (B, tokens, W) to the prefix and to the tokens of their own class before them.

    `asking` has the query states: all tokens, or in the last block only the end tokens.
    """
    attention = layer.self_attn
    queries = heads(layer, attention.q_proj(asking)) * attention.scale
    own_keys, own_values = (heads(layer, project(h)) for project in (attention.k_proj, attention.v_proj))
    keys, values = prefix
    batch, count_of_heads, behind, d = keys.shape
    to_prefix = queries @ keys.transpose(-1, -2)
    only_ends = asking.shape[1] != h.shape[1]
    results, asked, told = [], 0, 0
    for count, length in groups:
        looks = 1 if only_ends else length
        q_range, k_range = slice(asked, asked + count * looks), slice(told, told + count * length)
        asked, told = q_range.stop, k_range.stop
        q, k, v = (
            part.reshape(batch, count_of_heads, count, -1, d)
            for part in (queries[:, :, q_range], own_keys[:, :, k_range], own_values[:, :, k_range])
        )
        to_own = q @ k.transpose(-1, -2)
        if looks > 1:
            to_own = to_own.masked_fill(_causal_mask(length, h.device), -math.inf)
        before = to_prefix[:, :, q_range].reshape(batch, count_of_heads, count, looks, behind)
        weights = masked_softmax(torch.cat([before, to_own], dim=-1), None)
        # All classes attend to the same prefix: one product, not one per class.
        from_prefix = weights[..., :behind].reshape(batch, count_of_heads, count * looks, behind) @ values
        results.append(from_prefix + (weights[..., behind:] @ v).reshape(batch, count_of_heads, count * looks, d))
    return torch.cat(results, dim=2).transpose(1, 2).flatten(2)


def _causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """The causal mask: True for later tokens."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
