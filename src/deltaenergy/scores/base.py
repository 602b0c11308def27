"""The Score: what it may look at, what it must be told beforehand, and one number per image."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from deltaenergy.errors import InputError, NotFittedError, did_you_mean
from deltaenergy.needs import Need
from deltaenergy.progress import Progress

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier


@dataclass(frozen=True)
class ScoreInputs:
    """Everything a score may look at, for N images. Patches and pixels are there only for scores that need them."""

    similarities: torch.Tensor
    features: torch.Tensor
    patches: torch.Tensor | None = None
    pixels: torch.Tensor | None = None


@dataclass(frozen=True)
class Score:
    """Base of all scores: a frozen dataclass whose fields are the hyper-parameters, with the paper's defaults.

    A subclass implements `__call__`. One with text-side state (mined negatives) extends `prepare`; one fitted on
    ID data overrides `fit`; both keep what they learn in `self.state`, tensors by name, which is saved with the
    detector. `presets` are named settings: `delta-energy:robust`. Parameters that need more than the class says
    call `self.also_needs` in `check`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", {})
        object.__setattr__(self, "preset", None)
        object.__setattr__(self, "_classifier", None)
        self.check()

    # Set in __post_init__, because a dataclass field would become a hyper-parameter.
    if TYPE_CHECKING:
        state: dict[str, torch.Tensor]
        preset: str | None
        _classifier: Classifier | None

    def check(self) -> None:
        """Raise `InputError` for hyper-parameters that make no sense."""

    def also_needs(self, *needs: Need) -> None:
        """Add to what this one score needs; the class keeps its own."""
        object.__setattr__(self, "needs", self.needs | set(needs))

    def learned(self, name: str) -> torch.Tensor:
        """What `fit` kept under `name`, or an error that says how to fit."""
        if name not in self.state:
            raise NotFittedError(
                f"Score {self.spec!r} must see in-distribution images first: "
                "calibrate a detector with it, which also saves what it learned."
            )
        return self.state[name]

    def prepare(self, classifier: Classifier, progress: Progress | None = None) -> None:
        """Hold on to the classifier; subclasses then compute what depends on it alone.

        Called before any image, and again after loading: a score that finds its `state` filled keeps it. What was
        learned with another classifier is forgotten, since it belongs to other classes.
        """
        if self._classifier is not None and self._classifier is not classifier:
            self.state.clear()
        object.__setattr__(self, "_classifier", classifier)

    @property
    def classifier(self) -> Classifier:
        """The classifier it was prepared with, or an error that says to prepare."""
        if self._classifier is None:
            raise NotFittedError(f"Score {self.spec!r} has no classifier yet: call prepare(classifier) first.")
        return self._classifier

    def fit(self, inputs: ScoreInputs) -> None:
        """Learn from the similarities and features of ID images: called by `Detector.calibrate`."""

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """N images -> scores (N,), larger = more in-distribution."""
        raise NotImplementedError(f"{type(self).__name__} must implement __call__")

    @property
    def params(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def spec(self) -> str:
        """The shortest text that `make_score` turns into this score: name, preset, and what differs from it."""
        base: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        base.update(self.presets.get(self.preset or "", {}))
        changed = [f"{name}={_as_text(value)}" for name, value in self.params.items() if value != base[name]]
        return self.name + (f":{self.preset}" if self.preset else "") + (f"({','.join(changed)})" if changed else "")

    @property
    def missing(self) -> str | None:
        """What the user must give before this score can run at all, as a sentence; `all` leaves such scores out."""
        return None

    @property
    def needs_images(self) -> bool:
        """Whether image features alone are not enough."""
        return bool(self.needs & {Need.PATCHES, Need.PIXELS})

    @property
    def needs_fit(self) -> bool:
        """Whether it must see ID data first."""
        return Need.ID_DATA in self.needs


def _as_text(value: Any) -> str:
    """A parameter's value as `make_score` reads it: sequences in brackets, strings quoted unless plain words."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_/.~][\w/.~ -]*", value):
        return repr(value)
    return f"[{','.join(map(str, value))}]" if isinstance(value, (tuple, list)) else str(value)


def check_positive(owner: str, **values: float) -> None:
    """Raise `InputError` unless every named value is a finite number above zero."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"{owner}: {name} must be a positive number, got {value!r}.")


def unknown_parameter(score: type[Score], name: str) -> InputError:
    """The error for a hyper-parameter that `score` does not have."""
    known = [field.name for field in dataclasses.fields(score)]
    if not known:
        return InputError(f"Score {score.name!r} has no parameters, but got {name!r}.")
    return InputError(f"Score {score.name!r} has no parameter {name!r}.{did_you_mean(name, known)}")
