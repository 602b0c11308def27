"""A text tower of BERT's kind (Chinese-CLIP, ALIGN): full attention except to padding, pooled at the first token.

Blocks are post-norm and run by transformers; prompts with learned parts are run whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from deltaenergy.models.towers.blocks import replace_states
from deltaenergy.models.towers.text import OptionalTensor, TextTower


class BertTextTower(TextTower):
    """The text tower of a model in transformers' BERT layout (`embeddings.word_embeddings`, `encoder.layer`)."""

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
