"""Tuning methods by name: `make_tuning("coop(context_length=4)+ebm(p=0.5)")`.

A method builds a Learner. A loss term, such as EBM, attaches to any method that learns prompts; its name alone
stands for the term on its usual method (`ebm` is `coop+ebm`).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import pkgutil
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from deltaenergy.classifiers.base import Outputs
from deltaenergy.classifiers.learner import Learner
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.models.base import Model
from deltaenergy.tuning.data import TrainImages


@dataclass(frozen=True)
class Part:
    """A named piece of a tuning: a frozen dataclass whose fields are hyper-parameters with the paper's defaults."""

    name: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    # What `search` tries on validation images, by hyper-parameter.
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `InputError` for hyper-parameters that make no sense."""

    def grid_for(self, classes: int) -> Mapping[str, Sequence[Any]]:
        """What `search` tries for so many classes."""
        return self.grid

    @property
    def params(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def spec(self) -> str:
        """The shortest text that stands for this piece."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changed = [f"{name}={value}" for name, value in self.params.items() if value != defaults[name]]
        return self.name + (f"({','.join(changed)})" if changed else "")


@dataclass(frozen=True)
class Method(Part):
    """A way to tune: builds the learner that the one loop trains."""

    # Fields of `Recipe` in which the method's paper departs from the common recipe.
    recipe: ClassVar[Mapping[str, Any]] = {}
    needs_patches: ClassVar[bool] = False
    learns_prompts: ClassVar[bool] = False
    # A method without training is whole as built.
    trains: ClassVar[bool] = True

    @abstractmethod
    def learner(self, model: Model, classes: Sequence[str], data: TrainImages, generator: torch.Generator) -> Learner:
        """A learner with its initial parameters, drawn from `generator`."""


@dataclass(frozen=True)
class Term(Part):
    """A loss term that attaches to methods that learn prompts."""

    # The method that the term's name alone stands for, with the term attached.
    usual_method: ClassVar[str]

    @abstractmethod
    def __call__(self, outputs: Outputs) -> tuple[torch.Tensor, dict[str, float]]:
        """The weighted term, and what is to be logged of it."""

    def warning(self, logged: Mapping[str, float]) -> str | None:
        """What the user should hear after an epoch with these values, if anything."""
        return None


@dataclass(frozen=True)
class Tuning:
    """A method with its attached terms."""

    method: Method
    terms: tuple[Term, ...] = ()

    @property
    def spec(self) -> str:
        """The text that `make_tuning` turns into this."""
        return "+".join(part.spec for part in (self.method, *self.terms))

    def candidates(self, classes: int) -> Iterator[Tuning]:
        """Every combination of the grids of method and terms."""
        parts = (self.method, *self.terms)
        axes = [(i, name, values) for i, part in enumerate(parts) for name, values in part.grid_for(classes).items()]
        for choice in itertools.product(*(values for _, _, values in axes)):
            changes: list[dict[str, Any]] = [{} for _ in parts]
            for (i, name, _), value in zip(axes, choice):
                changes[i][name] = value
            method, *terms = (dataclasses.replace(part, **change) for part, change in zip(parts, changes))
            yield Tuning(method, tuple(terms))  # type: ignore[arg-type]


_PARTS: dict[str, type[Method] | type[Term]] = {}
PartType = TypeVar("PartType", bound="type[Method] | type[Term]")


def register_method(cls: PartType) -> PartType:
    """Class decorator: make a method or term known under its `name`."""
    if cls.name in _PARTS:
        raise ValueError(f"tuning method {cls.name!r} is registered twice")
    _PARTS[cls.name] = cls
    return cls


def list_methods() -> list[str]:
    """The names of all tuning methods, sorted; terms stand for their usual method."""
    _import_all()
    return sorted(_PARTS)


def get_method_class(name: str) -> type[Method] | type[Term]:
    """The method or term called `name`."""
    _import_all()
    if name not in _PARTS:
        raise InputError(f"Unknown tuning method {name!r}.{did_you_mean(name, _PARTS)}")
    return _PARTS[name]


def make_tuning(spec: str | Tuning) -> Tuning:
    """A tuning from its text.

    >>> make_tuning("ebm(p=0.5)").spec
    'coop+ebm(p=0.5)'
    """
    if isinstance(spec, Tuning):
        return spec
    parts = [_make_part(text, spec) for text in re.split(r"\+(?![^()]*\))", spec)]
    if isinstance(parts[0], Term):
        parts.insert(0, _make_part(parts[0].usual_method, spec))
    method, *terms = parts
    if not isinstance(method, Method):
        raise InputError(f"method {spec!r} must begin with a method or be a single term.")
    for term in terms:
        if not isinstance(term, Term):
            raise InputError(
                f"method {spec!r}: {term.name!r} is a method of its own and cannot be attached. Terms: "
                f"{', '.join(sorted(name for name, cls in _PARTS.items() if issubclass(cls, Term)))}."
            )
        if not method.learns_prompts:
            raise InputError(
                f"method {spec!r}: {term.name!r} attaches to methods that learn prompts: "
                f"{', '.join(sorted(n for n, c in _PARTS.items() if issubclass(c, Method) and c.learns_prompts))}."
            )
    return Tuning(method, tuple(term for term in terms if isinstance(term, Term)))


def _make_part(text: str, spec: str) -> Method | Term:
    match = re.fullmatch(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise InputError(f"method {spec!r} is not of the form name, name(parameter=value,…) or method+term.")
    cls = get_method_class(match[1])
    known = {field.name for field in dataclasses.fields(cls)}
    params: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"method {spec!r}: {part!r} is not of the form parameter=value.")
        if name not in known:
            hint = did_you_mean(name, known) if known else " It has none."
            raise InputError(f"Tuning method {cls.name!r} has no parameter {name!r}.{hint}")
        try:
            params[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            params[name] = value  # a bare word is a string
    return cls(**params)


def check_number(owner: str, name: str, value: Any, low: float, high: float = float("inf")) -> None:
    """Raise `InputError` unless `value` is a number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InputError(f"{owner}: {name} must be a number from {low:g} to {high:g}, got {value!r}.")


def check_count(owner: str, name: str, value: Any, low: int = 1) -> None:
    """Raise `InputError` unless `value` is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"{owner}: {name} must be a whole number of at least {low}, got {value!r}.")


def _import_all() -> None:
    """Import every module of this folder, so that each method has registered itself."""
    import deltaenergy.classifiers as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
