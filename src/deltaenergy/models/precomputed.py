"""A model whose features were computed elsewhere: no towers, only what is needed to read its features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from deltaenergy.errors import InputError
from deltaenergy.models.base import Model
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.models.text import TextTower
from deltaenergy.progress import Progress


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

    @property
    def text(self) -> TextTower:  # type: ignore[override]
        """There is none."""
        self._refuse("texts")

    def describe(self) -> dict[str, Any]:
        """Name, feature length and scale: all that is known."""
        return {"name": self.name, "fingerprint": self.fingerprint, "precomputed": True}

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """There is no image tower."""
        self._refuse("images")

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """There is no image tower."""
        self._refuse("images")

    def stream(
        self, images: Any, *, patches: bool = False, batch_size: int = 32, progress: Progress | None = None
    ) -> Iterator[EncodedBatch]:
        """There is no image tower."""
        self._refuse("images")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self.name!r} holds precomputed features and cannot encode {what}: give unit features, an array (N, "
            f"{self.feature_dim}), or load the model itself with load_model."
        )
