"""Run a text tower's blocks with a learned context in the prompts, exactly and without repeating shared work.

A prompt is [start] v_1 … v_M [name] . [end], with the context v learned (Zhou et al., CoOp, IJCV 2022). A causal
tower computes the same states for [start] v_1 … v_M whatever follows. So this prefix is run once, its keys and
values are kept in every layer, and only the name tokens of each class are run, attending to the prefix and to
themselves:

    softmax([q·K_prefix, q·K_own] / √d) · [V_prefix; V_own]

Names are packed by length without padding, and the last block computes nothing but the end tokens. Outputs and
gradients equal those of the 77-token pass. Where no prefix is shared (a context per class, the name in front or in
the middle, a tower without causal mask) whole prompts are run, truncated at their end tokens.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint

from deltaenergy.errors import InputError
from deltaenergy.models.text import TextTower

NamePosition = Literal["end", "front", "middle"]
# Activations kept for the backward pass, in bytes; beyond this, classes are run in chunks that are recomputed.
ACTIVATION_BUDGET = 2**30
# What one token leaves behind in one block, in multiples of the width: norms, q, k, v, attention, MLP (4 × twice).
_KEPT_PER_BLOCK = 18


@dataclass(frozen=True)
class _Pack:
    """Classes whose tokens are run together: groups of equal length, one after the other, without padding."""

    classes: list[int]
    groups: list[tuple[int, int]]  # (number of classes, tokens of each)
    ids: list[int]


class LearnedPrompts:
    """Class prompts around a learned context, through a frozen text tower.

    Args:
        tower: a model's text tower.
        names: class names.
        context_length: M, the number of context vectors.
        name_position: where the class name stands: after the context, before it, or in its middle.
        class_specific: whether every class has a context of its own.
        causal: whether a token sees only what stands before it, as in CLIP.
        activation_budget: bytes of activations to keep for the backward pass before classes are run in chunks.
    """

    def __init__(
        self,
        tower: TextTower,
        names: Sequence[str],
        context_length: int,
        *,
        name_position: NamePosition = "end",
        class_specific: bool = False,
        causal: bool = True,
        activation_budget: int = ACTIVATION_BUDGET,
    ) -> None:
        if name_position not in ("end", "front", "middle"):
            raise InputError(f"name_position must be 'end', 'front' or 'middle', got {name_position!r}.")
        self.tower = tower
        self.context_length = context_length
        self.name_position = name_position
        self.class_specific = class_specific
        self.causal = causal
        self.shares_prefix = causal and not class_specific and name_position == "end"
        self._layers: list[Any] = list(tower.transformer.encoder.layers)
        per_token = len(self._layers) * _KEPT_PER_BLOCK * tower.width * tower.embedding_weight.element_size()
        self._tokens_at_once = max(1, activation_budget // per_token)
        self._prompts = _arrange(tower, names, context_length, name_position)

    def __call__(self, context: torch.Tensor) -> torch.Tensor:
        """Context (M, W), or (K, M, W) if class-specific -> unit text features (K, D)."""
        expected = (len(self._prompts), self.context_length) if self.class_specific else (self.context_length,)
        if context.shape != (*expected, self.tower.width):
            raise ValueError(f"context has shape {tuple(context.shape)}, expected {(*expected, self.tower.width)}")
        if self.shares_prefix:
            return self.each(context[None])[0]
        return self._run_whole(context.to(self.tower.embedding_weight))

    def each(self, contexts: torch.Tensor) -> torch.Tensor:
        """Several shared contexts (B, M, W) -> unit text features (B, K, D): a context per image, or an ensemble."""
        if self.class_specific:
            raise ValueError("each() takes shared contexts; these prompts have one per class")
        if not self.shares_prefix:
            return torch.stack([self(context) for context in contexts])
        prefix = self._run_prefix(contexts.to(self.tower.embedding_weight))
        flat = [tensor for pair in prefix for tensor in pair]

        def run(pack: _Pack) -> Callable[..., torch.Tensor]:
            return lambda *keys_values: self._run_names(pack, list(zip(keys_values[::2], keys_values[1::2])))

        chunks = _chunks_by_length([len(p.after) for p in self._prompts], self._tokens_at_once // max(1, len(contexts)))
        packs = [self._pack(classes) for classes in chunks]
        return self._in_chunks([(run(pack), flat, pack.classes) for pack in packs], dim=1)

    def _in_chunks(
        self, chunks: list[tuple[Callable[..., torch.Tensor], list[torch.Tensor], list[int]]], dim: int
    ) -> torch.Tensor:
        """Run the chunks, recomputing all but one chunk's activations in the backward pass; classes in order."""
        order = [index for _, _, classes in chunks for index in classes]
        if len(chunks) == 1 or not torch.is_grad_enabled():
            results = [function(*inputs) for function, inputs, _ in chunks]
        else:
            results = [checkpoint(function, *inputs, use_reentrant=False) for function, inputs, _ in chunks]
        joined = results[0] if len(results) == 1 else torch.cat(results, dim=dim)
        back = torch.tensor(order, device=joined.device).argsort()
        return joined.index_select(dim, back)

    def _pack(self, classes: list[int]) -> _Pack:
        """The name tokens of classes that are in ascending order of length."""
        names = [self._prompts[index].after for index in classes]
        groups = [(len(list(same)), length) for length, same in itertools.groupby(map(len, names))]
        return _Pack(classes, groups, [token for name in names for token in name])

    def _run_prefix(self, contexts: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values (B, heads, 1 + M, d) of [start] and context in every layer."""
        start = self._embed(self._prompts[0].before)
        x = torch.cat([start.expand(len(contexts), -1, -1), contexts], dim=1)
        x = x + self._positions(torch.arange(x.shape[1], device=x.device))
        mask = _causal_mask(x.shape[1], x.device)
        kept = []
        for number, layer in enumerate(self._layers):
            h = layer.layer_norm1(x)
            keys, values = (_heads(layer, project(h)) for project in (layer.self_attn.k_proj, layer.self_attn.v_proj))
            kept.append((keys, values))
            if number + 1 < len(self._layers):  # beyond the last keys and values nothing looks at the prefix
                queries = _heads(layer, layer.self_attn.q_proj(h))
                weights = _softmax(queries @ keys.transpose(-1, -2) * layer.self_attn.scale, mask)
                x = _finish_block(layer, x, (weights @ values).transpose(1, 2).flatten(2))
        return kept

    def _run_names(self, pack: _Pack, prefix: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Unit features (B, classes of the pack, D) of the names behind each of B prefixes."""
        batch, _, behind, _ = prefix[0][0].shape
        places = torch.cat([torch.arange(length).repeat(count) for count, length in pack.groups])
        ends = torch.cat([torch.full((count,), length) for count, length in pack.groups]).cumsum(0) - 1
        ends = ends.to(self.tower.device)
        x = self._embed(pack.ids) + self._positions(behind + places.to(self.tower.device))
        x = x.expand(batch, -1, -1)
        for number, layer in enumerate(self._layers):
            last = number + 1 == len(self._layers)
            h = layer.layer_norm1(x)
            if last:
                x = x.index_select(1, ends)
            attended = _attend_names(layer, h, h.index_select(1, ends) if last else h, prefix[number], pack.groups)
            x = _finish_block(layer, x, attended)
        return self._features(x)

    def _run_whole(self, context: torch.Tensor) -> torch.Tensor:
        """Unit features (K, D) from whole prompts, truncated at their end tokens."""
        lengths = [prompt.length(self.context_length) for prompt in self._prompts]

        def run(classes: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda context: self._run_prompts(classes, context)

        chunks = _chunks_by_length(lengths, self._tokens_at_once)
        return self._in_chunks([(run(classes), [context], classes) for classes in chunks], dim=0)

    def _run_prompts(self, classes: list[int], context: torch.Tensor) -> torch.Tensor:
        device = self.tower.device
        rows = []
        for index in classes:
            prompt = self._prompts[index]
            own = context[index] if self.class_specific else context
            before, between, after = (self._embed(ids) for ids in (prompt.before, prompt.between, prompt.after))
            rows.append(torch.cat([before, own[: prompt.split], between, own[prompt.split :], after]))
        lengths = torch.tensor([len(row) for row in rows], device=device)
        x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        x = x + self._positions(torch.arange(x.shape[1], device=device))
        if self.causal:
            mask = _causal_mask(x.shape[1], device)
        else:
            padding = torch.arange(x.shape[1], device=device) >= lengths[:, None]
            mask = padding[:, None, None, :]
        for layer in self._layers:
            h = layer.layer_norm1(x)
            attention = layer.self_attn
            q, k, v = (_heads(layer, f(h)) for f in (attention.q_proj, attention.k_proj, attention.v_proj))
            weights = _softmax(q @ k.transpose(-1, -2) * attention.scale, mask)
            x = _finish_block(layer, x, (weights @ v).transpose(1, 2).flatten(2))
        return self._features(x[torch.arange(len(rows), device=device), lengths - 1])

    def _embed(self, ids: list[int]) -> torch.Tensor:
        tokens = torch.tensor(ids, dtype=torch.long, device=self.tower.device)
        embedded: torch.Tensor = self.tower.transformer.embeddings.token_embedding(tokens)
        return embedded

    def _positions(self, places: torch.Tensor) -> torch.Tensor:
        positions: torch.Tensor = self.tower.transformer.embeddings.position_embedding(places)
        return positions

    def _features(self, ends: torch.Tensor) -> torch.Tensor:
        return self.tower.finish(self.tower.projection(self.tower.transformer.final_layer_norm(ends)))


@dataclass(frozen=True)
class _Prompt:
    """`before` v_1 … v_split `between` v_{split+1} … v_M `after`, as token ids."""

    before: list[int]
    split: int
    between: list[int]
    after: list[int]

    def length(self, context_length: int) -> int:
        return len(self.before) + context_length + len(self.between) + len(self.after)


def _arrange(tower: TextTower, names: Sequence[str], context_length: int, position: NamePosition) -> list[_Prompt]:
    """The token ids of every class's prompt; a name too long for the tower is cut, with a warning."""
    room = tower.max_length - context_length - 2
    if room < 2:
        raise InputError(
            f"context_length {context_length} leaves no room for class names: "
            f"the text tower takes {tower.max_length} tokens. Use a shorter context."
        )
    prompts: list[_Prompt] = []
    for name, ids, alone in zip(names, tower.tokenize([f"{name}." for name in names]), tower.tokenize(names)):
        start, *words, end = ids
        if len(words) > room:
            warnings.warn(f"The class name {name[:60]!r} was cut to {room} tokens.", stacklevel=4)
            words = words[:room]
        # Behind the name stands the full stop; where the name ends, the name alone tells.
        named = min(len(alone) - 2, len(words))
        if position == "end":
            prompts.append(_Prompt([start], context_length, [], [*words, end]))
        elif position == "front":
            prompts.append(_Prompt([start, *words[:named]], context_length, [], [*words[named:], end]))
        else:
            prompts.append(_Prompt([start], context_length // 2, words[:named], [*words[named:], end]))
    return prompts


def _chunks_by_length(lengths: list[int], tokens_at_once: int) -> Iterator[list[int]]:
    """Positions by ascending length, in runs of at most `tokens_at_once` tokens (but at least one position)."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = total = 0
    for end, index in enumerate(order):
        if end > start and total + lengths[index] > tokens_at_once:
            yield order[start:end]
            start, total = end, 0
        total += lengths[index]
    yield order[start:]


def _attend_names(
    layer: Any,
    h: torch.Tensor,
    asking: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor],
    groups: list[tuple[int, int]],
) -> torch.Tensor:
    """Attention of packed name tokens (B, tokens, W) to the prefix and to the tokens of their own class before them.

    `asking` holds the states that look: all tokens, or in the last block the end tokens only.
    """
    attention = layer.self_attn
    queries = _heads(layer, attention.q_proj(asking)) * attention.scale
    own_keys, own_values = (_heads(layer, project(h)) for project in (attention.k_proj, attention.v_proj))
    keys, values = prefix
    batch, heads, behind, d = keys.shape
    to_prefix = queries @ keys.transpose(-1, -2)
    only_ends = asking.shape[1] != h.shape[1]
    results, asked, told = [], 0, 0
    for count, length in groups:
        looks = 1 if only_ends else length
        q_range, k_range = slice(asked, asked + count * looks), slice(told, told + count * length)
        asked, told = q_range.stop, k_range.stop
        q, k, v = (
            part.reshape(batch, heads, count, -1, d)
            for part in (queries[:, :, q_range], own_keys[:, :, k_range], own_values[:, :, k_range])
        )
        to_own = q @ k.transpose(-1, -2)
        if looks > 1:
            to_own = to_own.masked_fill(_causal_mask(length, h.device), -math.inf)
        scores = torch.cat([to_prefix[:, :, q_range].reshape(batch, heads, count, looks, behind), to_own], dim=-1)
        weights = _softmax(scores, None)
        # All classes look at the same prefix: one product, not one per class.
        from_prefix = weights[..., :behind].reshape(batch, heads, count * looks, behind) @ values
        results.append(from_prefix + (weights[..., behind:] @ v).reshape(batch, heads, count * looks, d))
    return torch.cat(results, dim=2).transpose(1, 2).flatten(2)


def _heads(layer: Any, projected: torch.Tensor) -> torch.Tensor:
    """(B, tokens, W) -> (B, heads, tokens, d)."""
    return projected.view(*projected.shape[:-1], -1, layer.self_attn.head_dim).transpose(1, 2)


def _softmax(scores: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Softmax without the entries that `hidden` marks, in at least float32."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return torch.softmax(wide, dim=-1).to(scores.dtype)


def _causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """True where a token must not look: at what stands behind it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def _finish_block(layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The rest of a pre-norm block after attention."""
    x = x + layer.self_attn.out_proj(attended)
    result: torch.Tensor = x + layer.mlp(layer.layer_norm2(x))
    return result
