"""Scores by name: `make_score("delta-energy(tau=1,c=2)")`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deltaenergy.core.registry import Registry
from deltaenergy.scores.base import Score

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# The default: best in docs/tables/default_score.py on held-out tests, above mcm on CLIP and on `lite`, on near and far
# unknowns. It is not fitted, so it needs no ID images, but a text tower for its words.
DEFAULT_SCORE = "delta-energy+words"
# For a classifier without a text tower, such as one on precomputed features; it must be fitted.
DEFAULT_WITHOUT_TEXTS = "multi-delta-energy"


def _check(name: str, cls: type[Score]) -> None:
    """Refuse classes that would fail later with a worse message."""
    if not isinstance(cls, type) or not issubclass(cls, Score):
        raise TypeError(f"score {name!r} must be a subclass of deltaenergy.Score, got {cls!r}")
    if "__dataclass_params__" not in vars(cls) or not vars(cls)["__dataclass_params__"].frozen:
        raise TypeError(f"score {name!r}: {cls.__name__} must be decorated with @dataclass(frozen=True)")
    for text in ("name", "summary", "formula", "paper"):
        if not isinstance(getattr(cls, text, None), str):
            raise TypeError(f"score {name!r}: {cls.__name__} must say its {text}")
    if cls.name != name:
        raise TypeError(f"score {name!r}: {cls.__name__} calls itself {cls.name!r}")
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            raise TypeError(f"score {name!r}: the parameter {field.name} needs a default")


SCORES: Registry[type[Score]] = Registry(
    "score", package="deltaenergy.scores", group="deltaenergy.scores", check=_check
)
register_score = SCORES.register


def list_scores() -> list[str]:
    """The names of all scores, sorted."""
    return SCORES.names()


def get_score_class(name: str) -> type[Score]:
    """The score class named `name`."""
    return SCORES.get(name)


def make_score(spec: str | Score, **params: Any) -> Score:
    """A score from its name, an optional preset and optional parameters.

    >>> make_score("delta-energy").params["c"]
    2
    >>> make_score("delta-energy(tau=1, c=1)").spec
    'delta-energy(tau=1,c=1)'
    """
    return SCORES.make(Score, spec, params)


def default_score(model: Model) -> str:
    return DEFAULT_WITHOUT_TEXTS if model.text is None else DEFAULT_SCORE
