"""The package as a whole: what importing it costs, what it offers, and that a wheel of it is complete."""

from __future__ import annotations

import subprocess
import sys

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


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Detectr'"):
        _ = de.Detectr
