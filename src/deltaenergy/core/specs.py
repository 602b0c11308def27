"""One grammar for everything that is chosen by text: `name:preset(key=value, …)+term(key=value, …)`.

`parse` splits such a text, `format_value` writes a value that `read_value` restores, and `Settings` is the frozen
dataclass of scores, tuning methods and loss terms: its fields are hyper-parameters with bounds in their annotations,
and its `spec` is its shortest text. Values are numbers, true, false or none, lists in brackets, quoted strings, or bare
words; a comma, a plus or a slash inside brackets or quotes belongs to the value.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from deltaenergy.errors import InputError, did_you_mean

# Longer texts are not specs; the limit protects against hostile input.
LONGEST = 20_000
# Whole numbers beyond the range of floats are not sensible settings.
HUGE = 1e300
S = TypeVar("S", bound="Settings")
P = ParamSpec("P")
R = TypeVar("R")
# Text that needs no quotes; ".5" would be read as a number.
_PLAIN = re.compile(r"(?!\.\d)[A-Za-z_~./][\w~./ -]*(?<! )")
# What ends the name at the start of a part.
_HEAD = re.compile(r"[:(]")
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_WORDS_WITH_MEANING = frozenset({*_WORDS, "nan", "inf", "infinity"})
_UNFIT: Any = object()
_NOUNS: dict[Any, str] = {
    float: "a finite number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    type(None): "none",
}


@dataclass(frozen=True)
class Named:
    """One part of a spec: a name, perhaps a preset, and its parameters as written."""

    name: str
    preset: str | None
    params: dict[str, str]


def parse(text: str, what: str, names: Iterable[str] = ()) -> list[Named]:
    """The parts of a spec between pluses; `what` names it in errors.

    A plus that is part of one of the known `names` does not split.

    >>> parse("coop(context_length=4)+ebm(p=0.5)", "method")[1].params
    {'p': '0.5'}
    >>> [part.name for part in parse("plot++(epsilon=0.1)+ebm", "method", ["plot++", "ebm"])]
    ['plot++', 'ebm']
    """
    with_plus = [name for name in names if "+" in name]
    parts = _whole_names(cut(text, "+", what), with_plus)
    if not all(parts):
        near = difflib.get_close_matches(_HEAD.split(text)[0].strip(), with_plus, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"{what} {_shown(text)} has no name: write name, name:preset or name(parameter=value,…).{hint}"
        )
    return [_parse_part(part, text, what) for part in parts]


def split(text: str, separator: str, what: str = "text") -> list[str]:
    """The non-blank parts of `text` between separators outside of brackets and quotes, stripped."""
    return [part for part in cut(text, separator, what) if part]


def cut(text: str, separator: str, what: str = "text") -> list[str]:
    """`split` that keeps blank parts: `a/` is a and nothing."""
    if len(text) > LONGEST:
        raise InputError(f"{what} is {len(text):,} characters long; the limit is {LONGEST:,}.")
    cuts = [i for i, letter, depth in _outside_quotes(text, what) if letter == separator and depth == 0]
    return [text[start + 1 : end].strip() for start, end in zip([-1, *cuts], [*cuts, len(text)])]


def _whole_names(pieces: list[str], names: Sequence[str]) -> list[str]:
    """Pieces between pluses; those that make up one of `names` are joined again, longest first."""
    parts: list[str] = []
    while pieces:
        counts = sorted({1 + name.count("+") for name in names}, reverse=True)
        joined = ((count, "+".join(pieces[:count])) for count in counts)
        count, part = next(((n, text) for n, text in joined if _HEAD.split(text)[0].strip() in names), (1, pieces[0]))
        parts.append(part)
        pieces = pieces[count:]
    return parts


def _outside_quotes(text: str, what: str) -> Iterator[tuple[int, str, int]]:
    """Every character outside of quoted strings, with the depth of brackets around it."""
    closers: list[str] = []
    quote, escaped, before = "", False, ""
    for i, letter in enumerate(text):
        if quote:
            if escaped or letter == "\\":
                escaped = not escaped
            elif letter == quote:
                quote = ""
        elif letter in "'\"" and before in "=[(,{":
            quote = letter  # elsewhere it is an apostrophe
        else:
            if closers and letter == closers[-1]:
                closers.pop()
            yield i, letter, len(closers)
            if letter in "([{":
                closers.append({"(": ")", "[": "]", "{": "}"}[letter])
        if not letter.isspace():
            before = letter
    if quote or closers:
        missing = quote or closers[-1]
        raise InputError(f"{what} {_shown(text)}: a {missing} is missing at its end.")


def _parse_part(part: str, whole: str, what: str) -> Named:
    outside = list(_outside_quotes(part, what))
    opened = next((i for i, letter, depth in outside if letter == "(" and depth == 0), None)
    head, inside = (part, "") if opened is None else (part[:opened], part[opened + 1 : -1])
    if opened is not None:
        closed = next(i for i, letter, depth in outside if i > opened and letter == ")" and depth == 0)
        if closed != len(part) - 1:
            raise InputError(
                f"{what} {_shown(whole)} is not of the form name, name:preset or name(parameter=value,…), joined by +."
            )
    name, colon, preset = (piece.strip() for piece in head.partition(":"))
    if not name or (colon and not preset):
        raise InputError(f"{what} {_shown(whole)} has no name or preset: write name or name:preset.")
    params: dict[str, str] = {}
    for piece in split(inside, ",", what):
        key, equals, value = (one.strip() for one in piece.partition("="))
        if not equals or not key:
            raise InputError(f"{what} {_shown(whole)}: {_shown(piece)} is not of the form parameter=value.")
        if not value:
            raise InputError(f"{what} {_shown(whole)}: {key} has no value. An empty text is written {key}=''.")
        if key in params:
            raise InputError(f"{what} {_shown(whole)}: {key} is given twice.")
        params[key] = value
    return Named(name, preset or None, params)


def read_value(text: str) -> Any:
    """A value as it was written: a literal if it is one, else the bare words themselves.

    >>> read_value("[0.1, two words]")
    [0.1, 'two words']
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stray backslash in a quoted text belongs to the user
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _read_list(text)
    return value if isinstance(value, (int, float, str, list, tuple)) else text


def _read_list(text: str) -> Any:
    """A flat list with bare words, or the text itself if it is not a list."""
    if len(text) <= 2 or text[0] + text[-1] != "[]" or text.startswith("[["):
        return text
    try:
        return [read_value(part) for part in split(text[1:-1], ",", "list")]
    except InputError:
        return text


def format_value(value: Any) -> str:
    """`value` as text that `read_value` restores."""
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS_WITH_MEANING
        return value if plain else repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


@dataclass(frozen=True)
class Range:
    """Bounds of a number in its annotation: `alpha: Annotated[float, Range(0, 1)]`. Both are included, except the lower
    one with `above`.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def allows(self, value: float) -> bool:
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        return f"above {self.low:g} and up to {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"


class SomeWords:
    """The rule of a text that must not be blank."""

    def allows(self, value: str) -> bool:
        return bool(value.strip())

    def __str__(self) -> str:
        return "of at least one word"


Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
Words = Annotated[str, SomeWords()]


@dataclass(frozen=True)
class Bounded:
    """Base of frozen dataclasses whose values are converted to their annotations at creation."""

    def __post_init__(self) -> None:
        owner = f"{self.name}: " if hasattr(self, "name") else ""
        for name, hint in parameters_of(type(self), rules=True).items():
            object.__setattr__(self, name, fit_type(f"{owner}{name}", getattr(self, name), hint))


@dataclass(frozen=True)
class Settings(Bounded):
    """Base of everything a spec names: a frozen dataclass whose fields are hyper-parameters with the paper's defaults.

    Annotations restrict single values, `__post_init__` combinations. `presets` are named settings:
    `delta-energy:robust`.
    """

    kind: ClassVar[str] = "settings"
    name: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def params(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {name: getattr(self, name) for name in parameters_of(type(self))}

    @property
    def spec(self) -> str:
        """The shortest text of these settings: name, preset if that helps, and what differs from it."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        texts = []
        for preset, values in {"": {}, **self.presets}.items():
            base = {**defaults, **values}
            changed = [f"{k}={format_value(v)}" for k, v in self.params.items() if v != base[k]]
            start = f"{self.name}:{preset}" if preset else self.name
            texts.append(f"{start}({','.join(changed)})" if changed else start)
        return min(texts, key=len)


def build(cls: type[S], part: Named, params: Mapping[str, Any] | None = None) -> S:
    """An object of `cls` from a parsed part; `params` are further values, given in Python."""
    what, known = cls.kind, parameters_of(cls)
    values: dict[str, Any] = {}
    if part.preset is not None:
        if part.preset not in cls.presets:
            hint = did_you_mean(part.preset, cls.presets) if cls.presets else " It has none."
            raise InputError(f"{what.capitalize()} {cls.name!r} has no preset {_shown(part.preset)}.{hint}")
        values.update(cls.presets[part.preset])
    for name in (*part.params, *(params or {})):
        if name not in known:
            hint = did_you_mean(name, known) if known else " It has none."
            raise InputError(f"{what.capitalize()} {cls.name!r} has no parameter {_shown(name)}.{hint}")
    for name, text in part.params.items():
        value, hint = read_value(text), known[name]
        # A text may look like a number and still be text.
        as_text = _fitted(value, hint) is _UNFIT and _fitted(text, hint) is not _UNFIT
        values[name] = text if as_text else value
    return cls(**{**values, **(params or {})})


def parameters_of(cls: Any, *, rules: bool = False) -> dict[str, Any]:
    """The hyper-parameters of `cls` with their types, on request with bounds and other rules; without fields marked
    `spec=False`.
    """
    return _annotations(cls, rules)


@functools.cache
def _annotations(cls: Any, rules: bool) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=rules)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.metadata.get("spec", True)}


def bounded(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: convert arguments to their annotations, as for settings: `temperature: Positive` refuses 0."""
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            given.arguments[name] = fit_type(f"{function.__name__}: {name}", value, hints.get(name))
        return function(*given.args, **given.kwargs)

    return wrapper


def fit_type(where: str, value: Any, hint: Any) -> Any:
    """`value` converted to `hint` (an int to float, a list to tuple), or an error that names `where`.

    Hints are numbers, bool, str, None, literals, lists and unions of these, perhaps annotated with a `Range` or another
    rule; values for other hints are not changed.
    """
    fitted = _fitted(value, hint)
    if fitted is _UNFIT:
        raise InputError(f"{where} must be {_wanted(hint)}, got {_shown(value)}.")
    return fitted


def _fitted(value: Any, hint: Any) -> Any:
    """`value` converted to `hint`, or `_UNFIT`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fitted = _fitted(value, parts[0])
        return fitted if fitted is not _UNFIT and all(rule.allows(fitted) for rule in parts[1:]) else _UNFIT
    if origin in (Union, types.UnionType):
        return next((fitted for part in parts if (fitted := _fitted(value, part)) is not _UNFIT), _UNFIT)
    if origin is Literal:
        return next((word for word in parts if type(word) is type(value) and word == value), _UNFIT)
    if origin in (tuple, Sequence):
        return _fitted_list(value, parts)
    # NumPy's numbers also work.
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is float:
        fits = number and -HUGE < (value if isinstance(value, int) else float(value)) < HUGE
        return float(value) if fits else _UNFIT
    if hint is int:
        return int(value) if number and isinstance(value, numbers.Integral) and abs(int(value)) < 2**62 else _UNFIT
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    return _UNFIT if hint in (bool, str, type(None)) and not isinstance(value, hint) else value


def _fitted_list(value: Any, parts: tuple[Any, ...]) -> Any:
    entries = value.tolist() if hasattr(value, "tolist") else value
    entries = [entries] if isinstance(entries, (numbers.Real, str)) else entries
    if not isinstance(entries, (tuple, list)) or not entries:
        return _UNFIT
    if len(parts) == 1 or parts[-1] is Ellipsis:
        parts = parts[:1] * len(entries)
    fitted = tuple(map(_fitted, entries, parts))
    return fitted if len(entries) == len(parts) and not any(entry is _UNFIT for entry in fitted) else _UNFIT


def _wanted(hint: Any) -> str:
    """What `hint` accepts, in words: "a whole number of at least 1 or none"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([_wanted(parts[0]), *map(str, parts[1:])])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_wanted, parts))
    if origin is Literal:
        return " or ".join(map(format_value, parts))
    if origin in (tuple, Sequence):
        variadic = len(parts) == 1 or parts[-1] is Ellipsis
        each = _wanted(parts[0]) if variadic else ", then ".join(map(_wanted, parts))
        return f"a list, each {each}" if variadic else f"a list of {len(parts)}: {each}"
    return _NOUNS[hint]


def _shown(value: Any) -> str:
    """A value in a message: quoted, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
