"""A classifier from class vectors that were computed elsewhere: s_k = z · t_k, as zero-shot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from deltaenergy.classifiers.base import Classifier, check_features, register_classifier
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model
from deltaenergy.models.precomputed import PrecomputedModel


@register_classifier
class PrecomputedClassifier(Classifier):
    """Scores and detectors on features alone, without the model that made them.

    Args:
        text_features: unit class vectors (K, D), an array or tensor.
        classes: K class names.
        model: what made the features; by default a `PrecomputedModel` of their length with CLIP's scale.
    """

    kind = "precomputed"

    def __init__(self, text_features: Any, classes: Sequence[str], model: Model | None = None) -> None:
        vectors = torch.as_tensor(text_features)
        if vectors.ndim != 2 or len(vectors) != len(classes):
            raise InputError(
                f"text_features must be an array with one row per class ({len(classes)}), "
                f"got shape {tuple(vectors.shape)}."
            )
        super().__init__(model or PrecomputedModel(vectors.shape[1]), classes)
        self._text_features = check_features(vectors, self.model).to(self.model.device)

    @property
    def text_features(self) -> torch.Tensor:
        """Unit class vectors (K, D)."""
        return self._text_features

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (N, K)."""
        return features @ self._text_features.T.to(features)

    def config(self) -> dict[str, Any]:
        """Nothing but the class vectors is needed."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The class vectors."""
        return {"text_features": self._text_features}

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> PrecomputedClassifier:
        """A saved classifier."""
        return cls(tensors["text_features"], classes, model)
