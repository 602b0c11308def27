"""A classifier with only some of another's classes: the same similarities with columns removed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs
from deltaenergy.errors import InputError


class ClassSubset(Classifier):
    """Classes `columns` of `classifier`, in that order; nothing is encoded again.

    For leaving classes out; it cannot be saved.
    """

    def __init__(self, classifier: Classifier, columns: Sequence[int]) -> None:
        super().__init__(classifier.model, [classifier.classes[column] for column in columns], classifier.method)
        self.templates, self.needs_to_predict = classifier.templates, classifier.needs_to_predict  # type: ignore[misc]
        self._whole = [classifier]  # in a list: the whole classifier is not part of this one's parameters
        self._columns = torch.as_tensor(columns, device=classifier.model.device)
        self.text_features = classifier.text_features[self._columns]

    def forward(self, x: Inputs) -> Outputs:
        whole = self._whole[0](x)
        texts = whole.texts[..., self._columns, :]
        negatives = whole.negatives
        if negatives is not None and negatives.ndim == 3:
            negatives = negatives[..., self._columns]
        return Outputs(whole.similarities[:, self._columns], whole.features, texts, negatives)

    def patch_similarities(self, patches: torch.Tensor) -> torch.Tensor:
        return self._whole[0].patch_similarities(patches)[..., self._columns]

    def save(self, folder: str | Path) -> None:
        """A subset is not saved."""
        raise InputError("A subset of a classifier cannot be saved: make a classifier of those classes instead.")
