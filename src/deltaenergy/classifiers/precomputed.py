"""A classifier from class vectors that were computed elsewhere: s_k = z · t_k, as zero-shot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import Method, register_method
from deltaenergy.core.arrays import native_array
from deltaenergy.core.classes import check_classes
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model
from deltaenergy.models.encoding import check_features
from deltaenergy.models.precomputed import PrecomputedModel


class PrecomputedClassifier(Classifier):
    """A classifier on precomputed features, without the model that made them.

    Args:
        text_features: unit class vectors (K, D), an array or tensor.
        classes: K class names.
        model: of the features; by default a `PrecomputedModel` of their length with CLIP's scale.
    """

    def __init__(self, text_features: Any, classes: str | Sequence[str], model: Model | None = None) -> None:
        classes = check_classes(classes)
        try:
            given = native_array(text_features) if isinstance(text_features, np.ndarray) else text_features
            vectors = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"text_features must be an array with one row per class: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(classes):
            raise InputError(
                f"text_features must be an array with one row per class ({len(classes)}), "
                f"got shape {tuple(vectors.shape)}."
            )
        super().__init__(model or PrecomputedModel(vectors.shape[1]), classes, Precomputed())
        self.text_features = check_features(vectors, self.model).to(self.model.device)


@register_method
@dataclass(frozen=True)
class Precomputed(Method):
    """Class vectors that were computed elsewhere."""

    name = "precomputed"
    summary = "class vectors that were computed elsewhere"
    formula = "s_k = z·t_k"
    paper = "this project"
    trains = False
    listed = False

    def build_empty(self, model: Model, classes: Sequence[str]) -> PrecomputedClassifier:
        """The classifier before its class vectors are known."""
        return PrecomputedClassifier(
            torch.nn.functional.normalize(torch.ones(len(classes), model.feature_dim)), classes, model
        )
