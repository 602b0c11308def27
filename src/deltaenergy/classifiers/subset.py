"""A classifier that knows only some of another's classes: the same similarities with columns removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model


class ClassSubset(Classifier):
    """Classes `columns` of `classifier`, in that order; nothing is encoded again.

    Made to ask what a classifier would do had it not been told of some classes; it is not saved.
    """

    kind = "subset"

    def __init__(self, classifier: Classifier, columns: Sequence[int]) -> None:
        self.model = classifier.model
        self.classes = tuple(classifier.classes[column] for column in columns)
        self.templates = classifier.templates
        self._whole = classifier
        self._columns = torch.as_tensor(columns, device=classifier.model.device)

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features of the remaining classes."""
        return self._whole.text_features[self._columns]

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Similarities with the remaining classes."""
        return self._whole.similarities_of_features(features)[:, self._columns]

    def adapted_features(self, features: torch.Tensor) -> torch.Tensor:
        """As the whole classifier adapts them."""
        return self._whole.adapted_features(features)

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        """Patch similarities with the remaining classes."""
        return self._whole.patch_similarities(patches)[..., self._columns]

    def config(self) -> dict[str, Any]:
        """A subset is not saved."""
        self._refuse()

    def tensors(self) -> dict[str, torch.Tensor]:
        """A subset is not saved."""
        self._refuse()

    @classmethod
    def from_state(
        cls, model: Model, classes: Sequence[str], config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> ClassSubset:
        """A subset is not saved."""
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise InputError("A subset of a classifier cannot be saved: make a classifier of those classes instead.")
