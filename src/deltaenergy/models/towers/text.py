"""The text tower: prompts -> unit features.

Shared by all towers: prompts are tokenised, batched by length and cached. Running, padding and pooling a batch differ:
`causal_text.py` (CLIP), `siglip.py`, and `BertTextTower` here.
"""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import nn

from deltaenergy.core.lru import LruCache
from deltaenergy.core.progress import Progress
from deltaenergy.core.text import counted
from deltaenergy.models.towers.blocks import replace_states

OptionalTensor = torch.Tensor | None
# Maximum tokens per batch: enough to keep two cores or a GPU busy, small enough for a laptop.
TOKENS_PER_BATCH = 4096
# 50,000 features of 512 floats are 100 MB; the least recently used go first.
CACHED_PROMPTS = 50_000
# Fast tokenizers set their padding in every call, which two threads must not do at once.
_TOKENIZING = threading.Lock()


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Rows divided by their length, in float32."""
    return nn.functional.normalize(vectors.float(), dim=-1)


class TextTower(ABC):
    """Tokenizer, transformer and projection of a text encoder.

    `encode` may be called from several threads at once.

    Args:
        transformer: transformers' text module.
        projection: pooled hidden state -> feature.
        tokenizer: transformers tokenizer, which frames texts with start and end tokens.
        finish: projected vector -> unit feature; plain normalisation for CLIP.

    Attributes:
        causal: whether a token sees only earlier tokens, so prompts can share a prefix.
        frame: ids that the tokenizer puts before and behind the words.
        max_length: maximum tokens, with the frame.
    """

    causal: bool
    frame: tuple[list[int], list[int]]
    max_length: int
    _layers: list[Any]

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
        self._cache = LruCache[str, torch.Tensor](CACHED_PROMPTS)
        self._look_at(transformer, tokenizer)

    @abstractmethod
    def _look_at(self, transformer: Any, tokenizer: Any) -> None:
        """Set `frame`, `max_length` and `_layers` from the parts."""

    @property
    def token_embedding(self) -> nn.Module:
        """Token ids -> embeddings, without positions."""
        module: nn.Module = self.transformer.embeddings.token_embedding
        return module

    @property
    def blocks(self) -> int:
        """How many blocks there are: the greatest depth of deep prompts."""
        return len(self._layers)

    @abstractmethod
    def run_tokens(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Token ids of each text, framed -> projected vectors (N, D), with gradients."""

    @abstractmethod
    def run_whole(
        self, embedded: torch.Tensor, lengths: torch.Tensor, deep: OptionalTensor = None, places: OptionalTensor = None
    ) -> torch.Tensor:
        """Unit features (N, D) of embedded prompts (N, L, W), padded behind their `lengths`, frame included.

        Before block b = 1, 2, … the states at each prompt's `places` (N, M) are replaced by `deep[b − 1]`.
        """

    def run_length(self, length: int) -> int:
        """How many tokens are computed for a text of `length` tokens."""
        return length

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding_weight.device

    @property
    def embedding_weight(self) -> torch.Tensor:
        """The token embeddings (vocabulary, W)."""
        weight: torch.Tensor = self.token_embedding.weight  # type: ignore[assignment]
        return weight

    @property
    def width(self) -> int:
        """Length of a token embedding: what a learned context vector must have."""
        return int(self.embedding_weight.shape[1])

    def derived(
        self,
        *,
        transformer: Any = None,
        projection: nn.Module | None = None,
        finish: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Self:
        """The same tower with some parts replaced, and its own cache."""
        return type(self)(
            transformer or self.transformer,
            projection or self.projection,
            self.tokenizer,
            finish=finish or self.finish,
        )

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with their frame, cut (with a warning) to the tower's length."""
        with _TOKENIZING:
            rows: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=True, truncation=False)["input_ids"]
        behind = self.frame[1]
        too_long = [text for text, row in zip(texts, rows) if len(row) > self.max_length]
        if too_long:
            warnings.warn(
                f"Cut {counted(len(too_long), 'text')} to {self.max_length} tokens, for example {too_long[0][:60]!r}.",
                stacklevel=3,
            )
        kept = self.max_length - len(behind)
        return [row if len(row) <= self.max_length else [*row[:kept], *behind] for row in rows]

    def words(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without their frame."""
        before, behind = map(len, self.frame)
        return [row[before : len(row) - behind] for row in self.tokenize(texts)]

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> torch.Tensor:
        """Unit features (N, D), row i for text i, on the tower's device."""
        known = {text: found for text in texts if (found := self._cache.get(text)) is not None}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        total = len(known) + len(new)
        if progress is not None:
            progress(len(known), total)
        for positions, vectors in self._run(new):
            with torch.inference_mode():
                known.update(zip((new[i] for i in positions), self.finish(vectors)))
            if progress is not None:
                progress(len(known), total)
        for text in new[-self._cache.most :]:
            self._cache.put(text, known[text])
        return torch.stack([known[text] for text in texts]) if texts else torch.zeros(0, self._feature_dim())

    def project(self, texts: Sequence[str], *, progress: Progress | None = None) -> torch.Tensor:
        """Vectors (N, D) before `finish`, un-normalised: for averages, and for bulk work that would flush the cache."""
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
        embedded: torch.Tensor = self.token_embedding(tokens)
        return embedded

    def _feature_dim(self) -> int:
        return int(self.encode([""]).shape[1])

    @torch.inference_mode()
    def _run(self, texts: list[str]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Batches of prompts of similar length: their positions in `texts`, and their projected vectors."""
        if not texts:
            return
        rows = self.tokenize(texts)
        order = sorted(range(len(texts)), key=lambda i: len(rows[i]))
        for batch in _batches_by_tokens([self.run_length(len(rows[i])) for i in order]):
            chosen = [order[i] for i in batch]
            yield chosen, self.run_tokens([rows[i] for i in chosen])

    def _padded(self, rows: Sequence[Sequence[int]], length: int, filler: int) -> torch.Tensor:
        """Ids (N, length)."""
        return torch.tensor([[*row, *[filler] * (length - len(row))] for row in rows], device=self.device)


class BertTextTower(TextTower):
    """The text tower of a model in transformers' BERT layout (`embeddings.word_embeddings`, `encoder.layer`).

    Chinese-CLIP's and ALIGN's: full attention except to padding, pooled at the first token. Blocks are post-norm and
    run by transformers; prompts with learned parts are run whole.
    """

    causal = False

    def _look_at(self, transformer: Any, tokenizer: Any) -> None:
        positions = int(transformer.embeddings.position_embeddings.weight.shape[0])
        # A tokenizer without a length reports an enormous one.
        self.max_length = min(positions, int(tokenizer.model_max_length))
        self.frame = ([tokenizer.cls_token_id], [tokenizer.sep_token_id])
        self._layers = list(transformer.encoder.layer)

    @property
    def token_embedding(self) -> nn.Module:
        module: nn.Module = self.transformer.embeddings.word_embeddings
        return module

    def run_tokens(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, rows))
        ids = self._padded(rows, longest, self.tokenizer.pad_token_id)
        seen = self._padded([[1] * len(row) for row in rows], longest, 0)
        hidden = self.transformer(input_ids=ids, attention_mask=seen).last_hidden_state
        projected: torch.Tensor = self.projection(hidden[:, 0])
        return projected

    def run_whole(
        self, embedded: torch.Tensor, lengths: torch.Tensor, deep: OptionalTensor = None, places: OptionalTensor = None
    ) -> torch.Tensor:
        """Unit features (N, D) of embedded prompts (N, L, W), masked after their `lengths`."""
        x = self.transformer.embeddings(inputs_embeds=embedded)
        hidden = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        # Added to the attention's scores, as every implementation accepts it.
        mask = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device)
        mask = mask.masked_fill(hidden, torch.finfo(x.dtype).min)[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        for number, layer in enumerate(self._layers):
            result = layer(replace_states(x, number, deep, places), mask)
            x = result[0] if isinstance(result, tuple) else result
        return self.finish(self.projection(x[:, 0]))


def _batches_by_tokens(lengths: list[int]) -> Iterator[range]:
    """Cut ascending lengths into runs whose padded size stays within `TOKENS_PER_BATCH`."""
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or (end - start + 1) * lengths[end] > TOKENS_PER_BATCH:
            yield range(start, end)
            start = end
