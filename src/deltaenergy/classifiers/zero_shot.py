"""Zero-shot: a class is the mean direction of its prompts, and similarity the cosine (Radford et al., ICML 2021).

t_k = norm( mean_m norm( text(template_m(name_k)) ) ),   s_k = z · t_k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from deltaenergy.classes import check_templates, fill
from deltaenergy.classifiers.base import Classifier, register_classifier
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.text import unit
from deltaenergy.progress import Progress


@register_classifier
class ZeroShotClassifier(Classifier):
    """A classifier from class names alone.

    Args:
        model: any model.
        classes: class names; duplicates are kept as separate columns.
        template: one prompt with `{}` for the name (default `a photo of a {}.`), or
        templates: several, whose embeddings are normalised, averaged and normalised again.
    """

    kind = "zero-shot"

    def __init__(
        self,
        model: Model,
        classes: Sequence[str],
        template: str | None = None,
        *,
        templates: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(model, classes)
        self.templates = check_templates(template, templates)
        self._text_features = class_features(model, self.classes, self.templates, progress)

    @property
    def text_features(self) -> torch.Tensor:
        """Unit text features (K, D)."""
        return self._text_features

    def similarities_of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Cosines (N, K)."""
        return features @ self._text_features.T.to(features)

    def config(self) -> dict[str, Any]:
        """The templates."""
        return {"templates": list(self.templates)}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The class features, so that loading need not run the text tower."""
        return {"text_features": self._text_features}

    @classmethod
    def from_state(
        cls,
        model: Model,
        classes: Sequence[str],
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> ZeroShotClassifier:
        """A saved classifier."""
        classifier = cls.__new__(cls)
        Classifier.__init__(classifier, model, classes)
        classifier.templates = check_templates(None, config["templates"])
        classifier._text_features = tensors["text_features"].to(model.device)
        return classifier


def class_features(
    model: Model, classes: Sequence[str], templates: Sequence[str], progress: Progress | None = None
) -> torch.Tensor:
    """Unit text features (K, D) of an ensemble of prompts per class."""
    prompts = [fill(template, name) for name in classes for template in templates]
    features = require_text(model, "a class prompt").encode(prompts, progress=progress)
    if len(templates) == 1:
        return features
    return unit(features.view(len(classes), len(templates), -1).mean(dim=1))
