"""Models whose image tower is convolutional: its last map, and what image and patch features are made of it.

    A = map(pixels) (B, C, h, w),   z = feature(mean_ij A_ij),   u_ij = feature(A_ij)

One function `feature` serves the mean and every place, so that both lie in the same space.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from deltaenergy.models.base import TowerModel


class ConvolutionalModel(TowerModel):
    """A model with `feature_map` and `features_of`; what else a `TowerModel` gives of images follows from them."""

    @abstractmethod
    def feature_map(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (B, 3, H, W) -> the last map (B, C, h, w), differentiable with respect to the pixels."""

    @abstractmethod
    def features_of(self, places: torch.Tensor) -> torch.Tensor:
        """What the map holds at a place, or its mean, (..., C) -> unit features (..., D), differentiable."""

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> unit features of the mean over the map."""
        return self.pooled(self.feature_map(pixels))

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit features of the mean over the map, and of each of its places, row by row."""
        feature_map = self.feature_map(pixels)
        return self.pooled(feature_map), self.patches(feature_map)

    def pooled(self, feature_map: torch.Tensor) -> torch.Tensor:
        """A map -> unit image features (B, D)."""
        return self.features_of(feature_map.mean((2, 3)))

    def patches(self, feature_map: torch.Tensor) -> torch.Tensor:
        """A map -> unit patch features (B, h·w, D)."""
        return self.features_of(feature_map.flatten(2).transpose(1, 2))
