"""Scores by name: `make_score("delta-energy(tau=1,c=2)")`."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
from typing import Any, TypeVar

from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.scores.base import Score, unknown_parameter

_SCORES: dict[str, type[Score]] = {}
ScoreType = TypeVar("ScoreType", bound="type[Score]")
_SPEC = re.compile(r"(?P<name>[^:()]+)(?::(?P<preset>[^()]+))?(?:\((?P<params>.*)\))?")


def register_score(cls: ScoreType) -> ScoreType:
    """Class decorator: make `cls` known under its `name`."""
    if cls.name in _SCORES:
        raise ValueError(f"score {cls.name!r} is registered twice")
    _SCORES[cls.name] = cls
    return cls


def list_scores() -> list[str]:
    """The names of all scores, sorted."""
    _import_all()
    return sorted(_SCORES)


def get_score_class(name: str) -> type[Score]:
    """The score class called `name`."""
    _import_all()
    if name not in _SCORES:
        raise InputError(f"Unknown score {name!r}.{did_you_mean(name, _SCORES)}")
    return _SCORES[name]


def make_score(spec: str | Score, **params: Any) -> Score:
    """A score from its name, an optional preset and optional parameters.

    >>> make_score("delta-energy").params["c"]
    2
    >>> make_score("delta-energy(tau=1, c=1)").spec
    'delta-energy(tau=1,c=1)'
    """
    if isinstance(spec, Score):
        if params:
            raise InputError("Give parameters with a score's name, not with a Score object.")
        return spec
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise InputError(f"score {spec!r} is not of the form name, name:preset or name(parameter=value,…).")
    cls = get_score_class(match["name"].strip())
    preset = match["preset"].strip() if match["preset"] else None
    settings: dict[str, Any] = {}
    if preset is not None:
        if preset not in cls.presets:
            known = did_you_mean(preset, cls.presets) if cls.presets else " It has none."
            raise InputError(f"Score {cls.name!r} has no preset {preset!r}.{known}")
        settings.update(cls.presets[preset])
    settings.update(_parse_params(match["params"] or "", spec))
    settings.update(params)
    known_names = {field.name for field in dataclasses.fields(cls)}
    for name in settings:
        if name not in known_names:
            raise unknown_parameter(cls, name)
    score = cls(**settings)
    object.__setattr__(score, "preset", preset)
    return score


def split_specs(text: str) -> list[str]:
    """Split `a,b(x=1,y=2)` at the commas outside brackets and quoted strings."""
    parts, depth, quote, start = [], 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[i - 1] != "\\" else quote
        elif letter in "'\"" and i > 0 and text[i - 1] in "=[(, ":
            quote = letter  # elsewhere it is an apostrophe
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _parse_params(text: str, spec: str) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for part in split_specs(text):
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"score {spec!r}: {part!r} is not of the form parameter=value.")
        try:
            params[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            params[name.strip()] = value.strip()  # a bare word is a string
    return params


def _import_all() -> None:
    """Import every module of this folder, so that each score has registered itself."""
    import deltaenergy.scores as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
