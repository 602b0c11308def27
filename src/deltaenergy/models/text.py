"""The text tower: prompts -> unit features, without computing what padding would throw away.

CLIP's text encoder is causal and pools at the end token, so tokens after it change nothing: prompts are run
truncated at the longest end token of their batch, batched by length, and cached by prompt.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from deltaenergy.progress import Progress

# A batch holds at most this many tokens: enough to keep two cores or a GPU busy, small enough for a laptop.
TOKENS_PER_BATCH = 4096
# 50,000 features of 512 floats are 100 MB; the least recently used go first.
CACHED_PROMPTS = 50_000


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Rows divided by their length, in float32."""
    return nn.functional.normalize(vectors.float(), dim=-1)


class TextTower:
    """Tokenizer, causal transformer and projection of a model in transformers' CLIP layout.

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
        self._cache: OrderedDict[str, torch.Tensor] = OrderedDict()

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

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with start and end token, cut (with a warning) to what the tower can take."""
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
        known: dict[str, torch.Tensor] = {}
        for text in texts:
            if text in self._cache:
                self._cache.move_to_end(text)
                known[text] = self._cache[text]
        new = list(dict.fromkeys(text for text in texts if text not in known))
        total = len(known) + len(new)
        if progress is not None:
            progress(len(known), total)
        for positions, vectors in self._run(new):
            with torch.inference_mode():
                known.update(zip((new[i] for i in positions), self.finish(vectors)))
            if progress is not None:
                progress(len(known), total)
        for text in new[-CACHED_PROMPTS:]:
            self._cache[text] = known[text]
        while len(self._cache) > CACHED_PROMPTS:
            self._cache.popitem(last=False)
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
