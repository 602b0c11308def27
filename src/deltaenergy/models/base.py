"""What a model is: a `Model` has features and perhaps a text tower, a `TowerModel` also encodes images.

All other code uses only these interfaces. Code that needs more than a plain `Model` calls `require_text`,
`require_towers` or `require_vision`, whose errors say what is missing.
"""

from __future__ import annotations

import copy
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.core.progress import Progress
from deltaenergy.core.text import HasRepr
from deltaenergy.errors import InputError, UnreadableImagesError
from deltaenergy.models.encoding import EncodedBatch, EncodedImages, collect, stream_batches
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.text import TextTower
from deltaenergy.models.towers.vision import VisionTower
from deltaenergy.source import as_source

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt

_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Model(HasRepr):
    """A frozen vision-language model, or only its features.

    Attributes:
        name: as passed to `load_model`.
        fingerprint: hash of weights, preprocessing and activation; equal fingerprints give equal features.
        feature_dim: D, the length of image and text features.
        logit_scale: L, the model's factor on cosines (100 for CLIP: τ = 1/L = 0.01).
        logit_bias: b of models trained with sigmoid(L·cosine + b) on pairs; 0 for others. No softmax changes with it.
        text: the text tower (tokenizer, encoder, prompt cache), if there is one.
        derived_by: tags of the changes since the model was loaded.
    """

    name: str
    fingerprint: str
    feature_dim: int
    logit_scale: float
    logit_bias: float = 0.0
    device: torch.device
    dtype: torch.dtype
    text: TextTower | None = None
    derived_by: tuple[str, ...] = ()

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {"name": repr(self.name), "features": self.feature_dim}
        for name in ("logit_scale", "logit_bias", "device", "dtype"):
            value = getattr(self, name, None)
            if value is not None and (name != "logit_bias" or value):
                facts[name.replace("_", " ")] = f"{value:.4g}" if isinstance(value, float) else value
        if self.derived_by:
            facts["derived by"] = ", ".join(self.derived_by)
        return facts

    def describe(self) -> dict[str, Any]:
        """What identifies this model in an artefact or report."""
        known: dict[str, Any] = {"name": self.name, "fingerprint": self.fingerprint}
        if self.derived_by:
            known["derived_by"] = list(self.derived_by)
        return known

    def derived(self, tag: str, **changes: Any) -> Self:
        """The same model with some attributes replaced, and its own fingerprint: `fingerprint+tag`."""
        other = copy.copy(self)
        for attribute, value in changes.items():
            if not hasattr(self, attribute):
                raise TypeError(f"{type(self).__name__} has no attribute {attribute!r} to replace")
            setattr(other, attribute, value)
        other.fingerprint = f"{self.fingerprint}+{tag}"
        other.derived_by = (*self.derived_by, tag)
        return other

    def encode_texts(self, texts: str | Sequence[str], *, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Unit text features (N, D), row i for text i."""
        tower = require_text(self, "encode_texts")
        features = tower.encode([texts] if isinstance(texts, str) else list(texts), progress=progress)
        array: npt.NDArray[np.float32] = features.float().cpu().numpy()
        return array


class TowerModel(Model, ABC):
    """A model that can be run: images and texts in, unit features out.

    Attributes:
        preprocessing: PIL image -> pixel array.
        text: the text tower.
        vision: the image tower block by block, if it is a vision transformer with a class token.
        why_no_vision: what the image tower is otherwise, for messages; follows the model's name.
        closed: why the image tower accepts no gradients and tokens, if so; follows the model's name.
        vision_prompts: tokens (J, n, H) that `image_features` puts into the image tower, see `with_vision_prompts`.
        backend: where the image tower runs, see `deltaenergy.models.backends`.
        calibration: id of the images that set its 8-bit ranges, if any.
    """

    preprocessing: Preprocessing
    text: TextTower
    vision: VisionTower | None = None
    why_no_vision: str = "has a convolutional one"
    closed: str | None = None
    vision_prompts: torch.Tensor | None = None
    backend: str = "torch"
    calibration: str | None = None

    @property
    def precision(self) -> str:
        """Precision of the image tower: fp32, fp16, bf16 or int8."""
        return _PRECISIONS.get(self.dtype, str(self.dtype).removeprefix("torch."))

    @property
    def runs_side_by_side(self) -> bool:
        """Whether several batches at a time, on one core each, are faster than one after the other."""
        return self.backend in ("torch", "openvino") and self.device.type == "cpu"

    @abstractmethod
    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (B, 3, H, W) -> unit features (B, D), differentiable with respect to the pixels."""

    @abstractmethod
    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels -> unit image features (B, D) and unit patch features (B, P, D) in the same space."""

    def describe(self) -> dict[str, Any]:
        known = {**super().describe(), "backend": self.backend, "precision": self.precision}
        if self.calibration is not None:
            known["calibration"] = self.calibration
        return {**known, "preprocessing": self.preprocessing.to_dict()}

    def with_vision_prompts(self, tokens: torch.Tensor) -> Self:
        """The model with learned tokens (J, n, H) in its image tower, as `VisionTower.run` takes them.

        Its features differ from the plain model's, and so does its fingerprint, which adds a hash of the tokens. A
        feature store or detector of one is refused for the other.
        """
        vision = require_vision(self, "with_vision_prompts")
        if tokens.ndim != 3 or tokens.shape[2] != vision.width or 0 in tokens.shape or len(tokens) > vision.blocks:
            raise InputError(
                f"tokens must have the shape (blocks, tokens, {vision.width}) with at most {vision.blocks} blocks, got "
                f"{tuple(tokens.shape)}."
            )
        tokens = tokens.detach().to(self.device, copy=True)
        digest = hashlib.blake2b(str(tuple(tokens.shape)).encode(), digest_size=16)
        digest.update(tokens.float().cpu().contiguous().numpy().tobytes())
        return self.derived(f"vision-prompts-{digest.hexdigest()}", vision_prompts=tokens)

    def stream(
        self, images: Any, *, patches: bool = False, batch_size: int = 32, progress: Progress | None = None
    ) -> Iterator[EncodedBatch]:
        """Encode images batch by batch; worker threads decode the next ones while the tower computes.

        On the CPU, torch computes one batch per core, or, with fewer batches than cores, one after the other on all
        cores.
        """
        source = as_source(images)
        return stream_batches(self, source, patches=patches, batch_size=batch_size, progress=progress)

    def encode(
        self, images: Any, *, patches: bool = False, batch_size: int = 32, progress: Progress | None = None
    ) -> EncodedImages:
        """Encode all images; unreadable images are skipped and listed in the result's `unreadable`.

        With torch on the CPU, the same list of images has the same features to the last bit on any number of cores.
        """
        batches = stream_batches(
            self, as_source(images), patches=patches, batch_size=batch_size, progress=progress, reproducible=True
        )
        return collect(batches, self.feature_dim)

    def encode_images(
        self, images: Any, *, batch_size: int = 32, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Unit image features (N, D), row i for image i; raises `UnreadableImagesError` if any cannot be read."""
        # Not `encode`: a single image should be encoded as soon as possible.
        encoded = collect(self.stream(images, batch_size=batch_size, progress=progress), self.feature_dim)
        if encoded.unreadable:
            raise UnreadableImagesError(encoded.unreadable)
        return encoded.features


def check_model(model: Any, who: str) -> None:
    """Raise `InputError` unless it is a model, such as a name that is still to be loaded."""
    if isinstance(model, Model):
        return
    if isinstance(model, (str, os.PathLike)):
        raise InputError(f"{who} needs a model, not its name: pass load_model({str(model)!r}).")
    raise InputError(
        f"{who} needs a model, such as load_model returns, not {type(model).__name__}. For precomputed features use "
        "PrecomputedModel or PrecomputedClassifier."
    )


def require_text(model: Model, who: str) -> TextTower:
    """The model's text tower, or an error that `who` needs one."""
    if model.text is None:
        raise InputError(
            f"{who} needs a text encoder, and {model.name!r} has only precomputed features: load the model itself with "
            "load_model. With class vectors use PrecomputedClassifier, or PrecomputedModel(…, class_vectors=…) and a "
            "method with fixed class texts, such as task-res."
        )
    return model.text


def require_towers(model: Model, who: str) -> TowerModel:
    """The model if it can encode images, or an error that `who` needs that."""
    if not isinstance(model, TowerModel):
        raise InputError(
            f"{who} encodes images, but {model.name!r} has precomputed features and cannot encode images: pass unit "
            f"features, an array (N, {model.feature_dim}) (to tune, LabelledFeatures), or load the model itself with "
            "load_model."
        )
    return model


def require_vision(model: Model, who: str) -> VisionTower:
    """The model's image tower, if it is a vision transformer with a class token, or an error that `who` needs one."""
    towers = require_towers(model, who)
    if towers.vision is None:
        raise InputError(
            f"{who} puts learned tokens into the image encoder, which must be a vision transformer; {model.name!r} "
            f"{towers.why_no_vision}."
        )
    return towers.vision
