"""What a record and its tensors must be: small checks, combined, whose errors name file, entry, found and expected.

    check = record({"keep": optional(number(above=0, high=1)), "classes": list_of(text(), least=1)})
    check(value, Where("detector.json"))      # detector.json: the entry keep is 1.5; expected a number …

A check takes a value and where it was found, and raises `ArtifactError` or returns nothing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from deltaenergy.errors import ArtifactError, did_you_mean

if TYPE_CHECKING:
    import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Where:
    """A place in a file: `file` alone, or an entry of it such as `score.params.tau` or `classes[3]`."""

    file: str
    entry: str = ""

    def at(self, key: str | int) -> Where:
        if isinstance(key, int):
            return replace(self, entry=f"{self.entry}[{key}]")
        return replace(self, entry=f"{self.entry}.{key}" if self.entry else key)

    def wrong(self, found: object, expected: str) -> ArtifactError:
        what = f"the entry {self.entry}" if self.entry else "the content"
        return ArtifactError(f"{self.file}: {what} is {_shown(found)}; expected {expected}.")


Check = Callable[[Any, Where], None]


def _value(fits: Callable[[Any], bool], expected: str) -> Check:
    def check(value: Any, where: Where) -> None:
        if not fits(value):
            raise where.wrong(value, expected)

    return check


def text(*, matching: str | None = None, among: Collection[str] | None = None, blank: bool = False) -> Check:
    """A Unicode text; not blank unless that is allowed."""
    expected = "a text" if blank else "a text that is not blank"
    if among is not None:
        expected = f"one of {', '.join(map(repr, sorted(among)))}"
    elif matching is not None:
        expected = f"a text of the form {matching}"

    def fits(value: Any) -> bool:
        if not isinstance(value, str) or not (blank or value.strip()) or not _is_unicode(value):
            return False
        return (among is None or value in among) and (matching is None or re.fullmatch(matching, value) is not None)

    return _value(fits, expected)


def path_text() -> Check:
    """The name of a file, which need not be Unicode."""
    return _value(lambda value: isinstance(value, str), "the name of a file")


def whole(low: int, high: int = 2**63 - 1) -> Check:
    """A whole number between two bounds."""
    expected = f"a whole number from {low}" + ("" if high == 2**63 - 1 else f" to {high}")
    return _value(lambda value: type(value) is int and low <= value <= high, expected)


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Check:
    """A finite number within the bounds; `above` excludes its bound."""
    bounds = [f"at least {low:g}"] if low > -math.inf else []
    bounds += [f"above {above:g}"] if above > -math.inf else []
    bounds += [f"at most {high:g}"] if high < math.inf else []

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and abs(value) < 2**1023 and low <= value <= high and value > above

    return _value(fits, " ".join(["a finite number", " and ".join(bounds)]).strip())


def truth() -> Check:
    return _value(lambda value: isinstance(value, bool), "true or false")


def anything() -> Check:
    """Any JSON value: for what is checked elsewhere."""
    return lambda value, where: None


def optional(check: Check) -> Check:
    """null, or what `check` wants."""
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check, *, length: int | None = None, least: int = 0) -> Check:
    """A list whose elements all pass `check`."""
    size = f" of at least {least}" if length is None and least else "" if length is None else f" of {length}"

    def checked(value: Any, where: Where) -> None:
        if not isinstance(value, list) or len(value) < least or length not in (None, len(value)):
            raise where.wrong(value, f"a list{size}")
        for position, element in enumerate(value):
            check(element, where.at(position))

    return checked


def mapping_of(check: Check) -> Check:
    """An object with any keys, whose values all pass `check`."""

    def checked(value: Any, where: Where) -> None:
        if not isinstance(value, dict):
            raise where.wrong(value, "an object with named entries")
        for key, element in value.items():
            check(element, where.at(key))

    return checked


def record(entries: Mapping[str, Check], *, others: bool = False, may_lack: Collection[str] = ()) -> Check:
    """An object with these entries; further ones only with `others`, and missing ones only as `may_lack` says."""

    def checked(value: Any, where: Where) -> None:
        if not isinstance(value, dict):
            raise where.wrong(value, "an object with named entries")
        # First, since a misspelt entry is also a missing one.
        unknown = [key for key in value if key not in entries]
        if unknown and not others:
            hint = did_you_mean(str(unknown[0]), entries)
            raise ArtifactError(f"{where.file}: the entry {where.at(unknown[0]).entry!r} is not known here.{hint}")
        for key, check in entries.items():
            if key in value:
                check(value[key], where.at(key))
            elif key not in may_lack:
                raise ArtifactError(f"{where.file}: the entry {where.at(key).entry!r} is missing.")

    return checked


def checks_of(cls: type) -> dict[str, Check]:
    """The checks in the annotations of a dataclass, as in `number: Annotated[int, whole(0)]`."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor must be: its shape, with None where any length will do, one of some types, and finite.

    `ascending`: whether the values must not decrease; `low` and `high`: the least and the greatest there may be.
    """

    shape: tuple[int | None, ...]
    dtypes: tuple[str, ...] = FLOATS
    ascending: bool = False
    low: float = -math.inf
    high: float = math.inf

    def check(self, tensor: torch.Tensor, where: Where) -> None:
        """Raise `ArtifactError` unless `tensor` is that."""
        import torch

        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        fits = len(shape) == len(self.shape) and all(want in (None, has) for want, has in zip(self.shape, shape))
        if dtype not in self.dtypes or not fits:
            wanted = ", ".join("any" if length is None else str(length) for length in self.shape)
            raise _wrong_tensor(where, f"{dtype} of shape {shape}", f"{' or '.join(self.dtypes)} of shape ({wanted})")
        check_finite(tensor, where)
        if self.ascending and (tensor[1:] < tensor[:-1]).any():
            raise _wrong_tensor(where, "not in ascending order", "ascending values")
        if tensor.numel() and not (self.low <= torch.min(tensor) and torch.max(tensor) <= self.high):
            found = f"{torch.min(tensor).item():g} to {torch.max(tensor).item():g}"
            raise _wrong_tensor(where, f"of values from {found}", f"values from {self.low:g} to {self.high:g}")


def check_tensors(
    tensors: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec], file: str, *, prefixes: tuple[str, ...] = ()
) -> None:
    """Raise `ArtifactError` unless the tensors are those of `specs`, and finite ones that start with a prefix."""
    for name, spec in specs.items():
        if name not in tensors:
            raise ArtifactError(f"{file}: the tensor {name!r} is missing.")
        spec.check(tensors[name], Where(file, name))
    for name, tensor in tensors.items():
        if name not in specs:
            if not name.startswith(prefixes):
                raise ArtifactError(f"{file}: the tensor {name!r} is not known here.")
            check_finite(tensor, Where(file, name))


def check_finite(tensor: torch.Tensor, where: Where) -> None:
    """Raise `ArtifactError` if a tensor of real numbers contains NaN or infinity."""
    import torch

    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise _wrong_tensor(where, f"NaN or infinite in {bad} of {tensor.numel()} numbers", "finite numbers")


@contextlib.contextmanager
def rebuilding(file: str, what: str) -> Iterator[None]:
    """While something is rebuilt from a file: what its parts refuse becomes an `ArtifactError` naming the file."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"{file}: {error}") from error
    except KeyError as error:
        raise ArtifactError(f"{file}: {what} lacks {error}.") from error
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError) as error:
        raise ArtifactError(f"{file}: {what} cannot be rebuilt: {error}") from error


def _wrong_tensor(where: Where, found: str, expected: str) -> ArtifactError:
    return ArtifactError(f"{where.file}: the tensor {where.entry!r} is {found}; expected {expected}.")


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
