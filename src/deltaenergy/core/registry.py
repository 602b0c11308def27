"""One registry for scores, tuning methods, models and benchmarks, open to other packages through entry points.

    SCORES: Registry[type[Score]] = Registry("score", package="deltaenergy.scores", group="deltaenergy.scores")

Modules of `package` register themselves when they are imported, at the first look-up. Other packages add to it by an
entry point in `group`, loaded at the same time; if loading does not register it, it is registered under the entry
point's name. Names are unique.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from deltaenergy.core.specs import Settings, build, parse
from deltaenergy.errors import InputError, did_you_mean

T = TypeVar("T")
Named = TypeVar("Named", bound=type)
S = TypeVar("S", bound=Settings)


class Registry(Generic[T]):
    """Things by name.

    Args:
        what: the noun in messages, such as "score".
        package: whose modules register themselves when they are imported.
        group: the entry-point group of other packages.
        check: called with a name and the entry to register; raises if it is invalid.
    """

    def __init__(
        self,
        what: str,
        *,
        package: str | None = None,
        group: str | None = None,
        check: Callable[[str, T], None] | None = None,
    ) -> None:
        self.what, self.package, self.group, self.check = what, package, group, check
        self._entries: dict[str, T] = {}
        self._begun = self._loaded = False
        self._loading = threading.RLock()

    def add(self, name: str, entry: T) -> T:
        """Register `entry`. Registering it again changes nothing; another entry under a taken name is an error."""
        if self.check is not None:
            self.check(name, entry)
        taken = self._entries.setdefault(name, entry)
        if taken is not entry:
            raise ValueError(f"{self.what} {name!r} is registered twice: {taken!r} and {entry!r}")
        return entry

    def register(self, cls: Named) -> Named:
        """Class decorator: `add` a class under its `name`."""
        entry: Any = cls
        self.add(entry.name, entry)
        return cls

    def get(self, name: str) -> T:
        """The entry named `name`, or an error that suggests the nearest names."""
        self.load()
        if name not in self._entries:
            shown = name if len(name) <= 60 else f"{name[:60]}…"
            raise InputError(f"Unknown {self.what} {shown!r}.{did_you_mean(shown, self._entries)}")
        return self._entries[name]

    def make(self, base: type[S], spec: str | S, params: Mapping[str, Any]) -> S:
        """The settings of a registered class from its text, with `params` on top; an object of `base` as it is.

        A plus is part of names such as `csp+delta-energy`, whose parameters come at the end.
        """
        if isinstance(spec, base):
            if params:
                raise InputError(f"Pass parameters with a {self.what}'s name, not with a {base.__name__} object.")
            return spec
        if not isinstance(spec, str):
            raise InputError(
                f"{self.what} must be a name, such as {self.names()[0]!r}, or of type {base.__name__}, got {spec!r}."
            )
        parts = parse(spec, self.what)
        name = "+".join(part.name for part in parts)
        if any(part.preset or part.params for part in parts[:-1]):
            raise InputError(f"{self.what} {name!r} takes its parameters at the end: write {name}(parameter=value,…).")
        cls: Any = self.get(name)
        made: S = build(cls, parts[-1], params)
        return made

    def names(self) -> list[str]:
        self.load()
        return sorted(self._entries)

    def items(self) -> list[tuple[str, T]]:
        return [(name, self._entries[name]) for name in self.names()]

    def __contains__(self, name: object) -> bool:
        self.load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def load(self) -> None:
        """Import our own package's modules, then other packages' entry points, once."""
        if self._loaded:
            return
        with self._loading:
            if self._begun:  # a module that is being imported gets what is registered so far
                return
            self._begun = True
            try:
                self._import_all()
                self._loaded = True
            finally:
                self._begun = self._loaded

    def _import_all(self) -> None:
        if self.package is not None:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        if self.group is not None:
            for point in sorted(importlib.metadata.entry_points(group=self.group), key=lambda p: p.name):
                self._add_entry_point(point)

    def _add_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        # A failure in another package must not break every command of this one.
        try:
            entry = point.load()
            if entry not in self._entries.values():
                self.add(point.name, entry)
        except Exception as error:
            source = f" of {point.dist.name}" if point.dist is not None else ""
            warnings.warn(
                f"The {self.what} {point.name!r}{source} could not be loaded and was skipped: {type(error).__name__}: "
                f"{error}",
                stacklevel=5,
            )
