"""How objects are displayed: one line in a terminal, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_NAMES_SHOWN = 5


def some_names(names: Sequence[str]) -> str:
    """`dog, cat, horse`, or the first few of many."""
    shown = ", ".join(name[:40] for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown}, …"


def in_line(kind: str, facts: Mapping[str, object]) -> str:
    """`<Kind: first fact; second fact>`."""
    return f"<{kind}: {'; '.join(f'{name} {value}' for name, value in facts.items())}>"


def in_table(kind: str, facts: Mapping[str, object]) -> str:
    """The same as an HTML table, escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption style='text-align:left'><b>{escape(kind)}</b></caption>{rows}</table>"


class HasRepr:
    """A class that describes itself by `_repr_fields`, most important first."""

    def _repr_fields(self) -> dict[str, object]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return in_line(type(self).__name__, self._repr_fields())

    def _repr_html_(self) -> str:
        return in_table(type(self).__name__, self._repr_fields())
