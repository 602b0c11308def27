"""Models with a convolutional image tower: its last map, and image and patch features from it.

    A = map(pixels) (B, C, h, w),   z = feature(mean_ij A_ij),   u_ij = feature(A_ij)

One function `feature` is used for the mean and every place, so both are in the same space.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from deltaenergy.models.base import TowerModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.clip import TransformersModel
from deltaenergy.models.towers.text import BertTextTower, unit


class ConvolutionalModel(TowerModel):
    """A model with `feature_map` and `features_of`; the rest of `TowerModel` follows from them."""

    @abstractmethod
    def feature_map(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (B, 3, H, W) -> the last map (B, C, h, w), differentiable with respect to the pixels."""

    @abstractmethod
    def features_of(self, places: torch.Tensor) -> torch.Tensor:
        """The map at a place, or its mean, (..., C) -> unit features (..., D), differentiable."""

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the mean over the map."""
        return self.pooled(self.feature_map(pixels))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit features of the mean over the map, and of each of its places, row by row."""
        feature_map = self.feature_map(pixels)
        return self.pooled(feature_map), self.patches(feature_map)

    def pooled(self, feature_map: torch.Tensor) -> torch.Tensor:
        return self.features_of(feature_map.mean((2, 3)))

    def patches(self, feature_map: torch.Tensor) -> torch.Tensor:
        return self.features_of(feature_map.flatten(2).transpose(1, 2))


class AlignModel(TransformersModel, ConvolutionalModel):
    """ALIGN (Jia et al., ICML 2021), as transformers loads it: an EfficientNet, whose last map is averaged, and a BERT.

    The model's temperature t divides cosines: its `logit_scale` is 1/t.
    """

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
        """The map is already in the joint space."""
        return unit(places)
