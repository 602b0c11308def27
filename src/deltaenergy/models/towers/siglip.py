"""SigLIP (Zhai et al., ICCV 2023) and SigLIP 2 (Tschannen et al., 2025) of one image size, on transformers' modules.

What differs from CLIP:
- Texts are padded to the tower's whole length (64), every token attends to every other, also padding, and the last
  state is the text. So whole prompts are run.
- Images have no class token: a learned probe q attends to the last block's patches x, and
      y = out_proj(softmax(q·K(x)/√d) V(x)),   feature = y + mlp(ln(y)).
  The feature of one patch is that of an image in which the probe sees only this patch (as MaskCLIP, ECCV 2022, for
  attention pooling): y = out_proj(V(x_p)).
- It was trained with sigmoid(L·cosine + b) on each pair. b is the model's `logit_bias`; softmax over a list of classes,
  which is the confidence here, does not change with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.blocks import run_blocks
from deltaenergy.models.towers.clip import TransformersModel
from deltaenergy.models.towers.text import OptionalTensor, TextTower, unit


class SiglipTextTower(TextTower):
    """The text tower of transformers' SiglipModel; its projection is the module's `head`."""

    causal = False

    def _look_at(self, transformer: Any, tokenizer: Any) -> None:
        self.max_length = int(transformer.embeddings.position_embedding.weight.shape[0])
        self.frame = ([], [tokenizer.eos_token_id])
        self._layers = list(transformer.encoder.layers)

    def run_length(self, length: int) -> int:
        """All texts are computed at full length."""
        return self.max_length

    def run_tokens(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        ids = self._padded(rows, self.max_length, self.tokenizer.pad_token_id)
        hidden = self.transformer(input_ids=ids).last_hidden_state
        projected: torch.Tensor = self.projection(hidden[:, -1])
        return projected

    def run_whole(
        self, embedded: torch.Tensor, lengths: torch.Tensor, deep: OptionalTensor = None, places: OptionalTensor = None
    ) -> torch.Tensor:
        """Unit features (N, D) of embedded prompts (N, L, W), with padding tokens behind their `lengths`."""
        count, length, _ = embedded.shape
        padding = self.embed([self.tokenizer.pad_token_id])
        x = torch.cat([embedded, padding.expand(count, self.max_length - length, -1)], dim=1)
        behind = torch.arange(self.max_length, device=x.device) >= lengths[:, None]
        x = torch.where(behind[..., None], padding, x) + self.transformer.embeddings.position_embedding.weight
        x = run_blocks(self._layers, x, None, deep, places)
        return self.finish(self.projection(self.transformer.final_layer_norm(x[:, -1])))


class SiglipModel(TransformersModel):
    """Any checkpoint that transformers loads as its `SiglipModel`."""

    family = "siglip"
    why_no_vision = (
        "has one without a class token. Use a method that learns texts or works on features, such as coop or "
        "tip-adapter-f"
    )

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        super().__init__(name, module, tokenizer, preprocessing)
        self.text = SiglipTextTower(module.text_model, module.text_model.head, tokenizer)
        self.feature_dim = int(module.vision_model.config.hidden_size)
        self.logit_scale = float(module.logit_scale.float().exp())
        self.logit_bias = float(module.logit_bias.float())

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the pooled patches."""
        parts = self._few_at_a_time(pixels.to(self.dtype))
        return unit(torch.cat([self.module.vision_model(part).pooler_output for part in parts]))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features, and unit features of each patch as if the probe saw only it."""
        outputs = [self.module.vision_model(part) for part in self._few_at_a_time(pixels.to(self.dtype))]
        states = torch.cat([one.last_hidden_state for one in outputs])
        head = self.module.vision_model.head
        attention = head.attention
        width = attention.embed_dim
        values = nn.functional.linear(
            states, attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :]
        )
        y = attention.out_proj(values)
        return unit(torch.cat([one.pooler_output for one in outputs])), unit(y + head.mlp(head.layernorm(y)))
