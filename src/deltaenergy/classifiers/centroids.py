"""Centroids: a class is the mean direction of its training images (Snell et al., NeurIPS 2017, on cosines).

μ_k = norm( mean_{i: y_i = k} z_i ),   s_k = z · μ_k

Nothing is trained, and class names are not used. It learns from the test view of each image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import Method, TrainViews, register_method


class CentroidClassifier(Classifier):
    """Cosines with the classes' mean images, instead of class texts."""

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        self.text_features = class_means(data.mean_features(), data.labels, len(self.classes))


@register_method
@dataclass(frozen=True)
class Centroids(Method):
    """No settings."""

    name = "centroids"
    summary = "the mean image of each class, without training; needs no class texts"
    formula = "s_k = z·μ_k, μ_k = norm(mean of the class's z)"
    paper = "Snell et al., NeurIPS 2017"
    classifier = CentroidClassifier
    augments = False
    trains = False
    quick = True


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Unit mean feature of each class (K, D)."""
    members = nn.functional.one_hot(labels, classes).to(features)
    return nn.functional.normalize(members.T @ features, dim=-1)
