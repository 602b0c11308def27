"""A model whose features were computed elsewhere: no towers, only what is needed to read its features."""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.models.base import Model


class PrecomputedModel(Model):
    """Stands for the model that made the features, so that classifiers, scores and detectors work on them.

    Args:
        feature_dim: D, the length of the features.
        logit_scale: the factor that the model was trained to put on cosines; 100 for CLIP.
        name: what the features were made with; detectors saved with one name are refused under another.
    """

    def __init__(self, feature_dim: int, *, logit_scale: float = 100.0, name: str = "precomputed") -> None:
        self.name = name
        self.feature_dim = feature_dim
        self.logit_scale = logit_scale
        self.fingerprint = f"precomputed:{name}:{feature_dim}:{logit_scale:g}"
        self.device = torch.device("cpu")
        self.dtype = torch.float32

    def describe(self) -> dict[str, Any]:
        """Name, feature length and scale: all that is known."""
        return {**super().describe(), "precomputed": True}
