"""The text tower: prompts -> unit features, without computing what padding or repetition would throw away.

CLIP's text encoder is causal and pools at the end token, so tokens after it change nothing: prompts are run
truncated at the longest end token of their batch, batched by length, and cached by prompt.

Prompts with learned parts (see `prompts.py`) are run block by block. A causal tower computes the same states for a
common prefix whatever follows. So the prefix is run once, its keys and values are kept in every block, and only what
stands behind it is run for each class, attending to the prefix and to itself:

    softmax([q·K_prefix, q·K_own] / √d) · [V_prefix; V_own]

What stands behind is packed by length without padding, and the last block computes nothing but the end tokens.
Outputs and gradients equal those of the 77-token pass.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from deltaenergy.models.blocks import finish_block, heads
from deltaenergy.progress import Progress

# A batch holds at most this many tokens: enough to keep two cores or a GPU busy, small enough for a laptop.
TOKENS_PER_BATCH = 4096
# 50,000 features of 512 floats are 100 MB; the least recently used go first.
CACHED_PROMPTS = 50_000
# Fast tokenizers set their padding anew in every call, which two threads must not do at once.
_TOKENIZING = threading.Lock()

# Keys and values (B, heads, tokens, d) of one block.
KeysValues = tuple[torch.Tensor, torch.Tensor]


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Rows divided by their length, in float32."""
    return nn.functional.normalize(vectors.float(), dim=-1)


class TextTower:
    """Tokenizer, causal transformer and projection of a model in transformers' CLIP layout.

    `encode` may be called from several threads at once.

    Args:
        transformer: transformers' CLIPTextModel (`embeddings`, `encoder.layers`, `final_layer_norm`).
        projection: hidden state at the end token -> feature.
        tokenizer: transformers tokenizer with start and end tokens.
        finish: projected vector -> unit feature; plain normalisation for CLIP.
    """

    def __init__(
        self,
        transformer: Any,
        projection: nn.Module,
        tokenizer: Any,
        *,
        finish: Callable[[torch.Tensor], torch.Tensor] = unit,
    ) -> None:
        self.transformer = transformer
        self.projection = projection
        self.tokenizer = tokenizer
        self.finish = finish
        self.max_length = int(self.transformer.embeddings.position_embedding.weight.shape[0])
        self._layers: list[Any] = list(transformer.encoder.layers)
        self._cache: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._cache_lock = threading.Lock()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding_weight.device

    @property
    def embedding_weight(self) -> torch.Tensor:
        """The token embeddings (vocabulary, W)."""
        weight: torch.Tensor = self.transformer.embeddings.token_embedding.weight
        return weight

    @property
    def width(self) -> int:
        """Length of a token embedding: what a learned context vector must have."""
        return int(self.embedding_weight.shape[1])

    @property
    def blocks(self) -> int:
        """How many blocks there are: the greatest depth of deep prompts."""
        return len(self._layers)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with start and end token, cut (with a warning) to what the tower can take."""
        with _TOKENIZING:
            rows: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=True, truncation=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        too_long = [text for text, row in zip(texts, rows) if len(row) > self.max_length]
        if too_long:
            warnings.warn(
                f"{len(too_long)} text(s) are longer than {self.max_length} tokens and were cut, "
                f"for example {too_long[0][:60]!r}.",
                stacklevel=3,
            )
        return [row if len(row) <= self.max_length else [*row[: self.max_length - 1], end] for row in rows]

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> torch.Tensor:
        """Unit features (N, D), row i for text i, on the tower's device."""
        known = self._from_cache(texts)
        new = list(dict.fromkeys(text for text in texts if text not in known))
        total = len(known) + len(new)
        if progress is not None:
            progress(len(known), total)
        for positions, vectors in self._run(new):
            with torch.inference_mode():
                known.update(zip((new[i] for i in positions), self.finish(vectors)))
            if progress is not None:
                progress(len(known), total)
        self._to_cache({text: known[text] for text in new[-CACHED_PROMPTS:]})
        return torch.stack([known[text] for text in texts]) if texts else torch.zeros(0, self._feature_dim())

    def project(self, texts: Sequence[str], *, progress: Progress | None = None) -> torch.Tensor:
        """Vectors (N, D) before `finish`, un-normalised: for averages, and for bulk that would flush the cache."""
        if not texts:
            return torch.zeros(0, self._feature_dim())
        order: list[int] = []
        batches: list[torch.Tensor] = []
        for positions, vectors in self._run(list(texts)):
            order += positions
            batches.append(vectors.float())
            if progress is not None:
                progress(len(order), len(texts))
        sorted_by_length = torch.cat(batches)
        projected = torch.empty_like(sorted_by_length)
        projected[torch.tensor(order, device=projected.device)] = sorted_by_length
        return projected

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """Token embeddings (tokens, W), without positions."""
        tokens = torch.tensor(ids, dtype=torch.long, device=self.device)
        embedded: torch.Tensor = self.transformer.embeddings.token_embedding(tokens)
        return embedded

    def run_prefix(
        self, embedded: torch.Tensor, deep: torch.Tensor | None = None, places: slice = slice(0)
    ) -> list[KeysValues]:
        """Embedded prefixes (B, n, W) -> their keys and values in every block.

        Before block b = 1, 2, … the states at `places` are replaced by `deep[b − 1]`, as long as there are any.
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
            if number + 1 < len(self._layers):  # beyond the last keys and values nothing looks at the prefix
                queries = heads(layer, layer.self_attn.q_proj(h))
                weights = _softmax(queries @ keys.transpose(-1, -2) * layer.self_attn.scale, mask)
                x = finish_block(layer, x, (weights @ values).transpose(1, 2).flatten(2))
        return kept

    def run_behind(
        self, prefix: list[KeysValues], embedded: torch.Tensor, groups: Sequence[tuple[int, int]]
    ) -> torch.Tensor:
        """Unit features (B, classes, D) of what stands behind each of B prefixes.

        `embedded` (tokens, W) holds the classes one after the other; `groups` says how many there are of which
        length, in this order.
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
        self,
        embedded: torch.Tensor,
        lengths: torch.Tensor,
        *,
        causal: bool = True,
        deep: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Unit features (N, D) of padded prompts (N, L, W), pooled at `lengths − 1`.

        Before block b = 1, 2, … the states at each prompt's `places` (N, M) are replaced by `deep[b − 1]`.
        """
        device = embedded.device
        rows = torch.arange(len(embedded), device=device)
        x = embedded + self._positions(torch.arange(embedded.shape[1], device=device))
        if causal:
            mask = _causal_mask(x.shape[1], device)
        else:
            padding = torch.arange(x.shape[1], device=device) >= lengths[:, None]
            mask = padding[:, None, None, :]
        for number, layer in enumerate(self._layers):
            if deep is not None and places is not None and 0 < number <= len(deep):
                x = x.index_put((rows[:, None], places), deep[number - 1].expand(len(x), -1, -1))
            h = layer.layer_norm1(x)
            attention = layer.self_attn
            q, k, v = (heads(layer, f(h)) for f in (attention.q_proj, attention.k_proj, attention.v_proj))
            weights = _softmax(q @ k.transpose(-1, -2) * attention.scale, mask)
            x = finish_block(layer, x, (weights @ v).transpose(1, 2).flatten(2))
        return self._features(x[rows, lengths - 1])

    def _positions(self, places: torch.Tensor) -> torch.Tensor:
        positions: torch.Tensor = self.transformer.embeddings.position_embedding(places)
        return positions

    def _features(self, ends: torch.Tensor) -> torch.Tensor:
        return self.finish(self.projection(self.transformer.final_layer_norm(ends)))

    def _from_cache(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        known: dict[str, torch.Tensor] = {}
        with self._cache_lock:
            for text in texts:
                if text in self._cache:
                    self._cache.move_to_end(text)
                    known[text] = self._cache[text]
        return known

    def _to_cache(self, features: dict[str, torch.Tensor]) -> None:
        with self._cache_lock:
            self._cache.update(features)
            while len(self._cache) > CACHED_PROMPTS:
                self._cache.popitem(last=False)

    def _feature_dim(self) -> int:
        return int(self.encode([""]).shape[1])

    @torch.inference_mode()
    def _run(self, texts: list[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Batches of prompts of similar length: their positions in `texts`, and their projected vectors."""
        if not texts:
            return
        rows = self.tokenize(texts)
        order = sorted(range(len(texts)), key=lambda i: len(rows[i]))
        for batch in _batches_by_tokens([len(rows[i]) for i in order]):
            chosen = [order[i] for i in batch]
            ids = self._pad([rows[i] for i in chosen])
            ends = torch.tensor([len(rows[i]) - 1 for i in chosen], device=ids.device)
            hidden = self.transformer(input_ids=ids).last_hidden_state
            pooled = hidden[torch.arange(len(chosen), device=ids.device), ends]
            yield chosen, self.projection(pooled)

    def _pad(self, rows: list[list[int]]) -> torch.Tensor:
        # Whatever follows the end token is never looked at, so the end token itself serves as padding.
        longest = max(map(len, rows))
        end = self.tokenizer.eos_token_id
        return torch.tensor([row + [end] * (longest - len(row)) for row in rows], device=self.device)


def _batches_by_tokens(lengths: list[int]) -> Iterator[range]:
    """Cut ascending lengths into runs whose padded size stays within `TOKENS_PER_BATCH`."""
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end - start + 1) * lengths[end] > TOKENS_PER_BATCH:
            yield range(start, end)
            start = end


def _attend_behind(
    layer: Any, h: torch.Tensor, asking: torch.Tensor, prefix: KeysValues, groups: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Attention of packed tokens (B, tokens, W) to the prefix and to the tokens of their own class before them.

    `asking` holds the states that look: all tokens, or in the last block the end tokens only.
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
        weights = _softmax(torch.cat([before, to_own], dim=-1), None)
        # All classes look at the same prefix: one product, not one per class.
        from_prefix = weights[..., :behind].reshape(batch, count_of_heads, count * looks, behind) @ values
        results.append(from_prefix + (weights[..., behind:] @ v).reshape(batch, count_of_heads, count * looks, d))
    return torch.cat(results, dim=2).transpose(1, 2).flatten(2)


def _softmax(scores: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Softmax without the entries that `hidden` marks, in at least float32."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return torch.softmax(wide, dim=-1).to(scores.dtype)


def _causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """True where a token must not look: at what stands behind it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
