"""ALIGN (Jia et al., ICML 2021) on transformers' modules: an EfficientNet, whose last map is averaged, and a BERT.

The image feature is the mean over the map, so each of its places is a patch feature in the same space.
The model's temperature t divides cosines: its `logit_scale` is 1/t.
"""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.bert_text import BertTextTower
from deltaenergy.models.towers.clip import TransformersModel
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.models.towers.text import unit


class AlignModel(TransformersModel, ConvolutionalModel):
    """Any checkpoint that transformers loads as its `AlignModel`."""

    family = "align"

    def __init__(self, name: str, module: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        super().__init__(name, module, tokenizer, preprocessing)
        self.text = BertTextTower(module.text_model, module.text_projection, tokenizer)
        self.feature_dim = int(module.config.projection_dim)
        self.logit_scale = 1 / float(module.temperature.float())

    def feature_map(self, pixels: torch.Tensor) -> torch.Tensor:
        """The last map (B, D, h, w)."""
        feature_map: torch.Tensor = self.module.vision_model(pixels.to(self.dtype)).last_hidden_state
        return feature_map

    def features_of(self, places: torch.Tensor) -> torch.Tensor:
        """The map is in the joint space already."""
        return unit(places)
