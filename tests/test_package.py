"""The package as a whole: what importing it costs, what it offers, and that a wheel of it is complete."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import deltaenergy as de


def test_importing_loads_neither_torch_nor_transformers() -> None:
    heavy = "('torch', 'transformers', 'numpy')"
    code = f"import sys, deltaenergy.cli.main; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert loaded == "[]"


@pytest.mark.parametrize("name", de.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(de, name) is not None
    assert name in dir(de)


def _inherited(cls: type, name: str) -> bool:
    return any(inspect.getdoc(vars(base)[name]) for base in cls.__mro__ if name in vars(base))


@pytest.mark.parametrize("room", [de, de.scores, de.classifiers, de.models])
def test_what_is_exported_says_what_it_does(room: ModuleType) -> None:
    exported = [getattr(room, name) for name in room.__all__ if not name.startswith("__")]
    silent = [thing for thing in exported if not inspect.getdoc(thing)]
    for cls in filter(inspect.isclass, exported):
        members = [getattr(member, "fget", member) for name, member in inspect.getmembers(cls) if name[0] != "_"]
        own = [one for one in members if inspect.isfunction(one) and one.__module__.startswith("deltaenergy")]
        silent += [one for one in own if not inspect.getdoc(one) and not _inherited(cls, one.__name__)]
    assert not silent


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Detectr'"):
        _ = de.Detectr
