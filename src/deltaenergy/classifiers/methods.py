"""Tuning methods by name: `make_method("coop(context_length=4)+ebm(p=0.5)")`.

A method builds a Classifier. A loss term, such as EBM, attaches to any method whose similarities are z · t; its name
without a method means its usual method (`ebm` is `coop+ebm`).
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from deltaenergy.classifiers.base import Classifier, Outputs, TrainBatch
from deltaenergy.classifiers.estimate import CostEstimate
from deltaenergy.core.needs import Need
from deltaenergy.core.registry import Registry
from deltaenergy.core.specs import Named, Settings, build, parse
from deltaenergy.errors import InputError
from deltaenergy.models.base import Model
from deltaenergy.training.recipe import Recipe, Stage


class TrainViews(Protocol):
    """Labelled training images, which give batches of random views."""

    labels: torch.Tensor
    domains: torch.Tensor
    domain_names: tuple[str, ...]

    def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> TrainBatch:
        """A random view of each of the images `indices`."""

    def mean_features(self) -> torch.Tensor:
        """A unit feature per image (N, D): the direction of the mean over its views."""

    def holds(self, needs: frozenset[Need]) -> bool:
        """Whether batches have all of that."""


@dataclass(frozen=True)
class TuningPart(Settings):
    """A named piece of a tuning: a method or a loss term."""

    # What `search` tries on validation images, by hyper-parameter.
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}
    # The score in its paper; a term's has priority over its method's.
    tested_with: ClassVar[str] = ""
    # Parameters that were set: a search does not change them.
    fixed: frozenset[str] = field(default=frozenset(), kw_only=True, compare=False, metadata={"spec": False})
    # What a search tries instead of `grid_for`: every combination of each of these grids.
    grids: tuple[Mapping[str, Sequence[Any]], ...] | None = field(
        default=None, kw_only=True, compare=False, metadata={"spec": False}
    )

    def grid_for(self, classes: int) -> Mapping[str, Sequence[Any]]:
        """What `search` tries, by the number of classes."""
        return self.grid

    def choices(self, classes: int) -> list[dict[str, Any]]:
        """The changes that a search tries, without duplicates; a single empty one if there is nothing to search."""
        found: list[dict[str, Any]] = []
        for grid in self.grids if self.grids is not None else (self.grid_for(classes),):
            axes = {name: values for name, values in grid.items() if name not in self.fixed}
            for values in itertools.product(*axes.values()):
                change = dict(zip(axes, values))
                if change not in found:
                    found.append(change)
        return found


@dataclass(frozen=True)
class Term(TuningPart):
    """A loss term that attaches to methods whose similarities are z · t."""

    kind = "loss term"
    # The method behind the term's name, with the term attached.
    usual_method: ClassVar[str]

    @abstractmethod
    def __call__(self, outputs: Outputs, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, float]]:
        """The weighted term, and values to log; `batch.frozen` has the frozen model's features."""

    def warning(self, logged: Mapping[str, float]) -> str | None:
        """A warning after an epoch with these values, if any."""
        return None


@dataclass(frozen=True)
class Method(TuningPart):
    """A tuning method with its terms: settings from which a classifier is built."""

    kind = "tuning method"
    tested_with = "mcm"
    classifier: ClassVar[type[Classifier]]
    # Fields of `Recipe` in which the method's paper differs from the common recipe.
    recipe: ClassVar[Mapping[str, Any]] = {}
    # Whether it learns from random views of the training images, or from their test view.
    augments: ClassVar[bool] = True
    # Whether similarities are z · t, so terms can mask z.
    takes_terms: ClassVar[bool] = False
    # A method without training is ready once built.
    trains: ClassVar[bool] = True
    # Whether it trains without an encoder, so it can be tuned repeatedly to measure it.
    quick: ClassVar[bool] = False
    # Whether it is one of the tuning methods that `list_methods` names.
    listed: ClassVar[bool] = True
    terms: tuple[Term, ...] = field(default=(), kw_only=True, metadata={"spec": False})

    @property
    def needs_to_train(self) -> frozenset[Need]:
        """What it needs of the training images."""
        return frozenset({Need.FEATURES})

    @property
    def needs_to_validate(self) -> frozenset[Need]:
        """What it needs of validation images from the frozen model, to predict.

        A method that changes the image encoder needs the input of the changed part.
        """
        return self.classifier.needs_to_predict

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The parts of the training, one after the other."""
        return (Stage(),)

    def estimate(
        self, model: Model, classes: Sequence[str], images: int, recipes: Sequence[Recipe]
    ) -> CostEstimate | None:
        """The cost of training on this many images, for methods that may exceed a machine.

        Called before any image is read; raises `InputError` for a model that cannot be tuned; `recipes` are those of
        the stages.
        """
        return None

    def views_of(self, asked: int | str) -> int | str:
        """The views that it learns from if `asked` were requested."""
        return asked if self.augments else "test"

    @property
    def batch_dependent(self) -> bool:
        """Whether an image's result depends on the others of its batch; shown in reports."""
        return False

    @property
    def usual_score(self) -> str:
        """The score in its paper."""
        return next((term.tested_with for term in self.terms if term.tested_with), self.tested_with)

    @property
    def spec(self) -> str:
        """The shortest text that `make_method` turns into this."""
        return "+".join([super().spec, *(term.spec for term in self.terms)])

    def build_empty(self, model: Model, classes: Sequence[str]) -> Classifier:
        """The classifier without parameter values, to load a saved state into."""
        return self.classifier(model, classes, self)

    def build(self, model: Model, classes: Sequence[str], data: TrainViews, generator: torch.Generator) -> Classifier:
        """The classifier with its initial parameters."""
        classifier = self.build_empty(model, classes)
        classifier.initialise(data, generator)
        return classifier.eval()

    def candidates(self, classes: int) -> Iterator[Method]:
        """Every combination of the grids of the method and its terms."""
        for own, *others in itertools.product(*(part.choices(classes) for part in (self, *self.terms))):
            terms = tuple(dataclasses.replace(term, **change) for term, change in zip(self.terms, others))
            yield dataclasses.replace(self, terms=terms, **own)


METHODS: Registry[type[TuningPart]] = Registry(
    "tuning method", package="deltaenergy.classifiers", group="deltaenergy.methods"
)
register_method = METHODS.register


def list_methods() -> list[str]:
    """The names of all tuning methods, sorted; terms mean their usual method."""
    return [name for name, cls in METHODS.items() if getattr(cls, "listed", True)]


def make_method(spec: str | Method) -> Method:
    """A method from its text.

    >>> make_method("ebm(p=0.5)").spec
    'coop+ebm(p=0.5)'
    """
    if isinstance(spec, Method):
        return spec
    parts = [_part(named) for named in parse(spec, "method", METHODS)]
    if isinstance(parts[0], Term):
        parts.insert(0, _part(Named(parts[0].usual_method, None, {})))
    method, *terms = parts
    if not isinstance(method, Method):
        raise InputError(f"method {spec!r} must start with a method or be a single term.")
    attached: list[Term] = []
    for term in terms:
        if not isinstance(term, Term):
            known = [name for name, cls in METHODS.items() if issubclass(cls, Term)]
            raise InputError(
                f"method {spec!r}: {term.name!r} is a separate method and cannot be attached. Terms: "
                f"{', '.join(known)}."
            )
        if not method.takes_terms:
            takers = [name for name, cls in METHODS.items() if issubclass(cls, Method) and cls.takes_terms]
            raise InputError(
                f"method {spec!r}: {term.name!r} attaches to methods whose similarities are cosines of an image "
                f"feature with learned class texts: {', '.join(takers)}."
            )
        if term.name in (one.name for one in attached):
            raise InputError(f"method {spec!r}: {term.name!r} is attached twice.")
        attached.append(term)
    return dataclasses.replace(method, terms=tuple(attached))


def _part(named: Named) -> TuningPart:
    """A method or term, which records what was set."""
    cls = METHODS.get(named.name)
    part = build(cls, named)
    return dataclasses.replace(part, fixed=frozenset({*named.params, *cls.presets.get(named.preset or "", ())}))


def warn_of_one_domain(method: str, data: TrainViews, effect: str) -> None:
    """Warn that `method` has only one domain, and what that means."""
    if len(data.domain_names) > 1:
        return
    warnings.warn(
        f"{method} learns from images of several domains, and these have one, {data.domain_names[0]!r}: {effect}. "
        "If there are more, pass folders DOMAIN/CLASS/ with `domains=True`, or a table with a domain column.",
        stacklevel=5,
    )
