"""One grammar for everything that is chosen by text: `name:preset(key=value, …)+term(key=value, …)`.

`parse` takes such a text apart, `format_value` writes a value so that `read_value` gives it back, and `Settings` is
the frozen dataclass that scores, tuning methods and loss terms share: its fields are the hyper-parameters, its `spec`
is the shortest text that stands for it. Values are numbers, true, false or none, lists in brackets, quoted strings, or
bare words; a comma, a plus or a slash inside brackets or quotes belongs to the value.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import numbers
import os
import re
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from deltaenergy.errors import InputError, did_you_mean

# Longer texts are no specs; the bound keeps a hostile one from costing time.
LONGEST = 20_000
# Whole numbers beyond the range of floats are no sensible settings either.
HUGE = 1e300
S = TypeVar("S", bound="Settings")
_PLAIN = re.compile(r"[A-Za-z_~./][\w~./ -]*(?<! )")
# What ends the name at the beginning of a part.
_HEAD = re.compile(r"[:(]")
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_WORDS_WITH_MEANING = frozenset({*_WORDS, "nan", "inf", "infinity"})


@dataclass(frozen=True)
class Named:
    """One part of a spec: a name, perhaps a preset, and its parameters as they were written."""

    name: str
    preset: str | None
    params: dict[str, str]


def parse(text: str, what: str, names: Iterable[str] = ()) -> list[Named]:
    """The parts of a spec, which stand between pluses; `what` is said in errors.

    A plus that belongs to one of the known `names` parts nothing.

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
            f"{what} {_shown(text)} lacks a name: write name, name:preset or name(parameter=value,…).{hint}"
        )
    return [_parse_part(part, text, what) for part in parts]


def split(text: str, separator: str, what: str = "text") -> list[str]:
    """The non-blank parts of `text` between separators that stand outside of brackets and quotes, stripped."""
    return [part for part in cut(text, separator, what) if part]


def cut(text: str, separator: str, what: str = "text") -> list[str]:
    """`split` that keeps blank parts: `a/` is a and nothing."""
    if len(text) > LONGEST:
        raise InputError(f"{what} is {len(text):,} characters long; at most {LONGEST:,} make sense.")
    cuts = [i for i, letter, depth in _outside_quotes(text, what) if letter == separator and depth == 0]
    return [text[start + 1 : end].strip() for start, end in zip([-1, *cuts], [*cuts, len(text)])]


def _whole_names(pieces: list[str], names: Sequence[str]) -> list[str]:
    """Pieces between pluses, with those put together again that make up one of `names`, the longest first."""
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
        raise InputError(f"{what} {_shown(whole)} lacks a name or a preset: write name or name:preset.")
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
            warnings.simplefilter("ignore")  # a stray backslash in a quoted text is the user's own
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _read_list(text)
    return value if isinstance(value, (int, float, str, list, tuple)) else text


def _read_list(text: str) -> Any:
    """A flat list with bare words in it, or the text itself if it is none."""
    if len(text) <= 2 or text[0] + text[-1] != "[]" or text.startswith("[["):
        return text
    try:
        return [read_value(part) for part in split(text[1:-1], ",", "list")]
    except InputError:
        return text


def format_value(value: Any) -> str:
    """`value` so that `read_value` gives it back."""
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS_WITH_MEANING
        return value if plain else repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


@dataclass(frozen=True)
class Settings:
    """Base of all that a spec names: a frozen dataclass whose fields are hyper-parameters with the paper's defaults.

    Values are checked against the fields' types when an object is made, then by `check`. `presets` are named
    settings: `delta-energy:robust`.
    """

    kind: ClassVar[str] = "settings"
    name: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        for name, hint in parameters_of(type(self)).items():
            object.__setattr__(self, name, fit_type(f"{self.name}: {name}", getattr(self, name), hint))
        self.check()

    def check(self) -> None:
        """Raise `InputError` for hyper-parameters that make no sense."""

    @property
    def params(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {name: getattr(self, name) for name in parameters_of(type(self))}

    @property
    def spec(self) -> str:
        """The shortest text that stands for these settings: name, preset if that helps, and what differs from it."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}

        def text(preset: str, base: Mapping[str, Any]) -> str:
            changed = [f"{k}={format_value(v)}" for k, v in self.params.items() if v != {**defaults, **base}[k]]
            return self.name + preset + (f"({','.join(changed)})" if changed else "")

        presets = ((f":{name}", base) for name, base in self.presets.items())
        return min((text(*one) for one in (("", {}), *presets)), key=len)


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
        values[name] = _read_as(f"{cls.name}: {name}", text, known[name])
    return cls(**{**values, **(params or {})})


def _read_as(where: str, text: str, hint: Any) -> Any:
    """A written value for a parameter of type `hint`. A text may look like a number and yet be meant as text."""
    try:
        return fit_type(where, read_value(text), hint)
    except InputError:
        try:
            return fit_type(where, text, hint)
        except InputError:
            pass
        raise


def parameters_of(cls: Any) -> dict[str, Any]:
    """The hyper-parameters of `cls` with their types; fields marked `spec=False` are none."""
    return _parameters_of(cls)


@functools.cache
def _parameters_of(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.metadata.get("spec", True)}


def fit_type(where: str, value: Any, hint: Any) -> Any:
    """`value` as `hint` wants it (a whole number serves as float, a list as tuple), or an error that names `where`."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _fit_any(where, value, get_args(hint))
    if origin is Literal:
        if value not in get_args(hint):
            words = [str(word) for word in get_args(hint)]
            raise InputError(f"{where}: unknown value {_shown(value)}.{did_you_mean(str(value), words)}")
        return value
    if origin is tuple:
        entries = [value] if isinstance(value, (numbers.Real, str)) else value
        if not isinstance(entries, (tuple, list)) or not entries:
            raise InputError(f"{where} must be a list such as [1,2], got {_shown(value)}.")
        return tuple(fit_type(where, entry, get_args(hint)[0]) for entry in entries)
    if hint is type(None) and value is not None:
        raise InputError(f"{where} must be none, got {_shown(value)}.")
    # NumPy's numbers are welcome as well.
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is float:
        if not number or not -HUGE < (value if isinstance(value, int) else float(value)) < HUGE:
            raise InputError(f"{where} must be a finite number, got {_shown(value)}.")
        return float(value)
    if hint is int:
        if not number or not isinstance(value, numbers.Integral) or not abs(int(value)) < 2**62:
            raise InputError(f"{where} must be a whole number, got {_shown(value)}.")
        return int(value)
    if hint is bool and not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, got {_shown(value)}.")
    if hint is str:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if not isinstance(value, str):
            raise InputError(f"{where} must be text, got {_shown(value)}.")
    return value


def _fit_any(where: str, value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return fit_type(where, value, hint)
        except InputError:
            continue
    words: dict[Any, str] = {float: "a number", int: "a whole number", str: "text", type(None): "none"}
    names = " or ".join(words.get(hint, str(hint)) for hint in hints)
    raise InputError(f"{where} must be {names}, got {_shown(value)}.")


def check_range(where: str, value: float, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Raise `InputError` unless value is a finite number with low ≤ value ≤ high, or low < value with `above`."""
    finite = isinstance(value, numbers.Real) and math.isfinite(value)
    if finite and (value > low if above else value >= low) and value <= high:
        return
    bound = f"above {low:g}" if above else f"at least {low:g}"
    raise InputError(f"{where} must be {bound}{f' and at most {high:g}' if high < math.inf else ''}, got {value!r}.")


def _shown(value: Any) -> str:
    """A value in a message: quoted, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
