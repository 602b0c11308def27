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


@pytest.mark.parametrize("room", [de, de.scores])
def test_what_is_exported_says_what_it_does(room: ModuleType) -> None:
    exported = [getattr(room, name) for name in room.__all__ if not name.startswith("__")]
    silent = [thing for thing in exported if not inspect.getdoc(thing)]
    for cls in filter(inspect.isclass, exported):
        methods = inspect.getmembers(cls, lambda member: inspect.isfunction(member) or isinstance(member, property))
        own = [method for name, method in methods if name[0] != "_" and "torch" not in str(inspect.getmodule(method))]
        silent += [method for method in own if not inspect.getdoc(method)]
    assert not silent


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Detectr'"):
        _ = de.Detectr
