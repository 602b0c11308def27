"""The Model: images and texts in, unit features out. Everything downstream sees only this interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.errors import UnreadableImagesError
from deltaenergy.models.encoding import Encoded, EncodedBatch, collect, stream_batches
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.text import TextTower
from deltaenergy.progress import Progress

if TYPE_CHECKING:
    import numpy.typing as npt


class Model(ABC):
    """A frozen vision-language model.

    Attributes:
        name: what `load_model` was given.
        fingerprint: hash of weights, preprocessing and activation; equal fingerprints give equal features.
        feature_dim: D, the length of image and text features.
        logit_scale: L, the factor that the model was trained to put on cosines (100 for CLIP: τ = 1/L = 0.01).
        preprocessing: PIL image -> pixel array.
        text: the text tower (tokenizer, encoder, prompt cache).
    """

    name: str
    fingerprint: str
    feature_dim: int
    logit_scale: float
    preprocessing: Preprocessing
    text: TextTower
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (B, 3, H, W) -> unit features (B, D), differentiable with respect to the pixels."""

    @abstractmethod
    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels -> unit image features (B, D) and unit patch features (B, P, D) in the same space."""

    def describe(self) -> dict[str, Any]:
        """What identifies this model in an artefact or report."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "preprocessing": self.preprocessing.to_dict(),
        }

    def stream(
        self, images: Any, *, patches: bool = False, batch_size: int = 32, progress: Progress | None = None
    ) -> Iterator[EncodedBatch]:
        """Encode images batch by batch; worker threads decode the next ones while the tower computes."""
        return stream_batches(self, images, patches=patches, batch_size=batch_size, progress=progress)

    def encode(
        self, images: Any, *, patches: bool = False, batch_size: int = 32, progress: Progress | None = None
    ) -> Encoded:
        """Encode all images; those that cannot be read are skipped and listed in the result's `unreadable`."""
        return collect(self.stream(images, patches=patches, batch_size=batch_size, progress=progress), self.feature_dim)

    def encode_images(
        self, images: Any, *, batch_size: int = 32, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Unit image features (N, D), row i for image i; raises `UnreadableImagesError` if any cannot be read."""
        encoded = self.encode(images, batch_size=batch_size, progress=progress)
        if encoded.unreadable:
            raise UnreadableImagesError(encoded.unreadable)
        return encoded.features

    def encode_texts(self, texts: str | Sequence[str], *, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Unit text features (N, D), row i for text i."""
        features = self.text.encode([texts] if isinstance(texts, str) else list(texts), progress=progress)
        array: npt.NDArray[np.float32] = features.float().cpu().numpy()
        return array
