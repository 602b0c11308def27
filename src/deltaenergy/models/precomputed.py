"""A model whose features were computed elsewhere: without towers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from deltaenergy.core.arrays import native_array
from deltaenergy.core.classes import DEFAULT_TEMPLATE, ClassFinder, check_classes
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model
from deltaenergy.models.encoding import check_features

ClassVectors = Mapping[str, Any] | tuple[Sequence[str], Any]


class PrecomputedModel(Model):
    """Represents the model that made the features, so classifiers, scores and detectors work on them.

    Args:
        feature_dim: D, the length of the features.
        logit_scale: the model's factor on cosines; 100 for CLIP.
        name: of the model; detectors saved with one name are refused under another.
        fingerprint: of the model that made the features, if known: `Store.fingerprint`. Stores, classifiers and
            detectors of that model then also work here.
        class_vectors: unit text features by class name, {name: vector} or (names, array of one row per name): they
            replace a text tower for fixed class texts (zero-shot, task-res, the adapters).
    """

    def __init__(
        self,
        feature_dim: int,
        *,
        logit_scale: float = 100.0,
        name: str = "precomputed",
        fingerprint: str | None = None,
        class_vectors: ClassVectors | None = None,
    ) -> None:
        self.name = name
        self.feature_dim = feature_dim
        self.logit_scale = logit_scale
        self.fingerprint = fingerprint or f"precomputed:{name}:{feature_dim}:{logit_scale:g}"
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        # The names that have a class vector.
        self.classes: tuple[str, ...] = ()
        self._vectors = torch.zeros(0, feature_dim)
        if class_vectors is not None:
            self.classes, self._vectors = self._named_vectors(class_vectors)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "precomputed": True}

    def class_features(self, classes: Sequence[str], templates: Sequence[str] = (DEFAULT_TEMPLATE,)) -> torch.Tensor:
        """The vectors (K, D) of some classes; only for the default template."""
        if not self.classes:
            raise InputError(
                f"{self.name!r} has neither a text encoder nor class vectors: use PrecomputedModel(…, class_vectors="
                "{name: vector}), or load the model itself with load_model. The tuning methods linear-probe and "
                "centroids need neither."
            )
        if tuple(templates) != (DEFAULT_TEMPLATE,):
            raise InputError(
                f"{self.name!r} has precomputed class vectors, so the template {templates[0]!r} cannot be used. "
                "Compute the vectors with that template, and remove it here."
            )
        finder = ClassFinder(self.classes)
        places = [finder.find(name) for name in classes]
        missing = [name for name, position in zip(classes, places) if position is None]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"{self.name!r} has no class vector for {missing[0]!r}{more}.{finder.near(missing[0])}")
        return self._vectors[torch.tensor(places)]

    def _named_vectors(self, given: ClassVectors) -> tuple[tuple[str, ...], torch.Tensor]:
        if isinstance(given, Mapping):
            names, rows = list(given), list(given.values())
        elif isinstance(given, tuple) and len(given) == 2:
            names, rows = list(given[0]), list(given[1])
        else:
            raise InputError("class_vectors must be {name: vector}, or (names, array) with one row per name.")
        check_classes(names, warn=False)
        if len(names) != len(rows):
            raise InputError(f"class_vectors has {len(names)} names for {len(rows)} vectors: pass one row per name.")
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise InputError(f"class_vectors has the name {twice!r} more than once: give each class its own name.")
        try:
            array = torch.stack(
                [torch.as_tensor(native_array(row) if isinstance(row, np.ndarray) else row) for row in rows]
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"class_vectors must have one vector of numbers per name: {error}") from error
        if array.ndim != 2:
            raise InputError(f"class_vectors must have one vector per name, got shape {tuple(array.shape)}.")
        return tuple(names), check_features(array, self, "class_vectors")
