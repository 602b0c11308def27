"""ALIGN (Jia et al., ICML 2021) on transformers' modules: an EfficientNet, whose last map is averaged, and a BERT.

The image feature is the mean over the map, so each of its places is a patch feature in the same space.
The model's temperature t divides cosines: its `logit_scale` is 1/t.
"""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.models.bert_text import BertTextTower
from deltaenergy.models.clip import TransformersModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.text import unit


class AlignModel(TransformersModel):
    """Any checkpoint that transformers loads as its `AlignModel`."""

    family = "align"

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        super().__init__(name, module, tokenizer, preprocessing)
        self.text = BertTextTower(module.text_model, module.text_projection, tokenizer)
        self.feature_dim = int(module.config.projection_dim)
        self.logit_scale = 1 / float(module.temperature.float())

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the mean over the map."""
        return unit(self._map(pixels).mean((2, 3)))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit image features, and unit features of each place of the map."""
        feature_map = self._map(pixels)
        return unit(feature_map.mean((2, 3))), unit(feature_map.flatten(2).transpose(1, 2))

    def _map(self, pixels: torch.Tensor) -> torch.Tensor:
        """The last map (B, D, h, w)."""
        feature_map: torch.Tensor = self.module.vision_model(pixels.to(self.dtype)).last_hidden_state
        return feature_map
