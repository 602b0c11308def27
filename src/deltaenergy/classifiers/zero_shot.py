"""Zero-shot: a class is the mean direction of its prompts, and similarity the cosine (Radford et al., ICML 2021).

    t_k = norm( mean_m norm( text(template_m(name_k)) ) ),   s_k = z · t_k

Also the base of methods that learn in addition to such class texts, or on top of them. The text tower runs once, at the
start of training; stored class vectors also work (`PrecomputedModel`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import Method, TrainViews, register_method
from deltaenergy.core.classes import DEFAULT_TEMPLATE, Template, check_classes, check_templates, fill
from deltaenergy.core.progress import Progress
from deltaenergy.models.base import Model, require_text
from deltaenergy.models.precomputed import PrecomputedModel
from deltaenergy.models.towers.text import unit


class ZeroShotClassifier(Classifier):
    """A classifier from class names.

    Args:
        model: any model.
        classes: class names, in a list or in one string with commas; duplicates are kept as separate columns.
        template: one prompt with `{}` for the name (default `a photo of a {}.`), or
        templates: several, whose embeddings are normalised, averaged and normalised again.
    """

    def __init__(
        self,
        model: Model,
        classes: str | Sequence[str],
        template: str | None = None,
        *,
        templates: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._blank(model, check_classes(classes), ZeroShot(templates=check_templates(template, templates)))
        self.text_features = class_features(model, self.classes, self.templates, progress)

    def _blank(self, model: Model, classes: Sequence[str], method: ZeroShot) -> None:
        super().__init__(model, classes, method)
        self.templates = method.templates

    def with_classes(self, classes: str | Sequence[str]) -> ZeroShotClassifier:
        """The same prompts around other class names."""
        return ZeroShotClassifier(self.base_model, classes, templates=self.templates)


@register_method
@dataclass(frozen=True)
class ZeroShot(Method):
    """The classifier before any tuning."""

    name = "zero-shot"
    summary = "class names in prompts, nothing learned"
    formula = "s_k = z·t_k, t_k = norm(mean_m norm(text(template_m(name_k))))"
    paper = "Radford et al., ICML 2021"
    trains = False
    quick = True
    listed = False
    templates: tuple[Template, ...] = (DEFAULT_TEMPLATE,)

    def build_empty(self, model: Model, classes: Sequence[str]) -> ZeroShotClassifier:
        classifier = ZeroShotClassifier.__new__(ZeroShotClassifier)
        classifier._blank(model, classes, self)
        return classifier

    def build(
        self, model: Model, classes: Sequence[str], data: TrainViews, generator: torch.Generator
    ) -> ZeroShotClassifier:
        """The zero-shot classifier; the training images are not used."""
        return ZeroShotClassifier(model, classes, templates=self.templates)


class TemplateClassifier(Classifier):
    """Base of the methods that learn in addition to class texts from one template."""

    method: TemplateMethod

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        self.text_features = class_features(self.model, self.classes, [self.method.template])

    def with_classes(self, classes: str | Sequence[str]) -> Classifier:
        """What was learned, with the template around other class names."""
        other = super().with_classes(classes)
        other.text_features = class_features(self.model, other.classes, [self.method.template])
        return other


@dataclass(frozen=True)
class TemplateMethod(Method):
    """Base of the methods that learn in addition to class texts from one template."""

    quick = True
    template: Template = DEFAULT_TEMPLATE


class FrozenTextClassifier(Classifier):
    """Keeps the model's class texts in addition to the learned ones.

    Attributes:
        frozen_texts: t⁰, unit text features (K, D).
    """

    method: FrozenTextMethod
    frozen_texts: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: FrozenTextMethod) -> None:
        super().__init__(model, classes, method)
        self.templates = method.templates
        self.register_buffer("frozen_texts", torch.zeros_like(self.text_features))

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        self.frozen_texts.copy_(class_features(self.base_model, self.classes, self.templates))


@dataclass(frozen=True)
class FrozenTextMethod(Method):
    """Base of the methods that learn on top of fixed class texts, from one template or several."""

    quick = True
    templates: tuple[Template, ...] = (DEFAULT_TEMPLATE,)


def class_features(
    model: Model, classes: Sequence[str], templates: Sequence[str], progress: Progress | None = None
) -> torch.Tensor:
    """Unit text features (K, D) of an ensemble of prompts per class, or the class vectors instead."""
    if isinstance(model, PrecomputedModel):
        return model.class_features(classes, templates)
    prompts = [fill(template, name) for name in classes for template in templates]
    # A clone, because what comes out of inference mode cannot take part in training.
    features = require_text(model, "A class prompt").encode(prompts, progress=progress).clone()
    if len(templates) == 1:
        return features
    return unit(features.view(len(classes), len(templates), -1).mean(dim=1))
