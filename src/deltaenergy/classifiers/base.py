"""The Classifier: image features -> one similarity per class. What every tuning method returns, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch

from deltaenergy.classes import DEFAULT_TEMPLATE, check_classes
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files import hash_strings
from deltaenergy.models.base import Model, require_towers

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Inputs:
    """What a classifier may look at, for N images: whatever it needs is there, the rest may be None.

    Attributes:
        features: unit features (N, D) of the classifier's own model.
        patches: unit patch features (N, P, D) of the same model.
        pixels: preprocessed images (N, 3, H, W).
        domains: the domain of each image (N,), counted from 0.
    """

    features: torch.Tensor | None = None
    patches: torch.Tensor | None = None
    pixels: torch.Tensor | None = None
    domains: torch.Tensor | None = None


@dataclass(frozen=True)
class Outputs:
    """What a classifier makes of N images.

    Attributes:
        similarities: (N, K), on which CE is taken after multiplication with the model's logit scale L.
        features: the unit image features (N, D) that were compared with the texts.
        texts: unit text features, (K, D) or per image (N, K, D).
        negatives: similarities (N, …) with texts that stand for none of the classes, where a method has them.
    """

    similarities: torch.Tensor
    features: torch.Tensor
    texts: torch.Tensor
    negatives: torch.Tensor | None = None


_KINDS: dict[str, type[Classifier]] = {}
ClassifierType = TypeVar("ClassifierType", bound="type[Classifier]")


class Classifier(ABC):
    """A model with K named classes.

    Subclasses implement `similarities_of_features` and the two state methods, and register under `kind`.
    Similarities are cosines, or logits divided by the model's logit scale, so that τ = 1/L means the same for all.
    """

    kind: ClassVar[str]
    # The prompts that class names are put into, for scores that run further texts of the classes.
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)

    def __init__(self, model: Model, classes: Sequence[str]) -> None:
        self.model = model
        self.classes = check_classes(classes)

    @property
    def classes_hash(self) -> str:
        """Identity of the ordered class list."""
        return hash_strings(self.classes)

    @property
    @abstractmethod
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D), one per class; methods with per-image texts give those of a neutral image."""

    @abstractmethod
    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Unit image features (N, D) -> similarities (N, K)."""

    def __call__(self, x: Inputs) -> Outputs:
        """Similarities, and the features and texts behind them."""
        assert x.features is not None
        return Outputs(self.similarities_of_features(x.features), self.adapted_features(x.features), self.text_features)

    def adapted_features(self, features: torch.Tensor) -> torch.Tensor:
        """The image features that the class texts are compared with: changed by adapters, else as they are."""
        return features

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        """Unit patch features (..., D) -> similarities (..., K) with the class texts."""
        return patches @ self.text_features.T.to(patches)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Everything but classes and tensors that `from_state` needs, as JSON values."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """The learned or computed tensors that `from_state` needs."""

    @classmethod
    @abstractmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> Classifier:
        """The classifier that `config()` and `tensors()` described."""

    def similarities(self, images: Any, *, batch_size: int = 32) -> npt.NDArray[np.float32]:
        """Similarities (N, K) for images, or for unit features given as an (N, D) array or tensor."""
        features = self.features_of(images, batch_size=batch_size)
        with torch.inference_mode():
            array: npt.NDArray[np.float32] = self.similarities_of_features(features).float().cpu().numpy()
        return array

    def features_of(self, images: Any, *, batch_size: int = 32) -> torch.Tensor:
        """Unit features on the model's device: given ones after a check, or those of the images."""
        if is_feature_array(images):
            return check_features(images, self.model).to(self.model.device)
        return torch.from_numpy(
            require_towers(self.model, "similarities").encode_images(images, batch_size=batch_size)
        ).to(self.model.device)


def is_feature_array(images: Any) -> bool:
    """Whether `images` is a 2-D float array or tensor, and so stands for features, not pictures."""
    if isinstance(images, torch.Tensor):
        return images.ndim == 2 and images.is_floating_point()
    return isinstance(images, np.ndarray) and images.ndim == 2 and np.issubdtype(images.dtype, np.floating)


def check_features(features: Any, model: Model) -> torch.Tensor:
    """Features as float32, or an error that says what is wrong with them."""
    tensor = torch.as_tensor(features).float()
    if tensor.shape[1] != model.feature_dim:
        raise InputError(
            f"features have {tensor.shape[1]} columns, but model {model.name!r} gives {model.feature_dim}. "
            "Were they computed with another model?"
        )
    bad = ~torch.isfinite(tensor).all(dim=1)
    if bad.any():
        rows = torch.nonzero(bad).flatten().tolist()
        raise InputError(f"features hold NaN or infinity in {len(rows)} row(s), the first is row {rows[0]}.")
    norms = tensor.norm(dim=1)
    if len(norms) and (norms - 1).abs().max() > 1e-2:
        row = int((norms - 1).abs().argmax())
        raise InputError(
            f"features must have unit length, but row {row} has length {norms[row]:.3g}. Divide each row by its norm."
        )
    return tensor


def register_classifier(cls: ClassifierType) -> ClassifierType:
    """Class decorator: make `cls` loadable by its `kind`."""
    if cls.kind in _KINDS:
        raise ValueError(f"classifier kind {cls.kind!r} is registered twice")
    _KINDS[cls.kind] = cls
    return cls


def classifier_kind(kind: str) -> type[Classifier]:
    """The class registered under `kind`."""
    _import_all()
    if kind not in _KINDS:
        raise ArtifactError(f"Unknown classifier kind {kind!r}.{did_you_mean(kind, _KINDS)}")
    return _KINDS[kind]


def _import_all() -> None:
    """Import every module of this folder, so that each classifier has registered itself."""
    import importlib
    import pkgutil

    import deltaenergy.classifiers as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
