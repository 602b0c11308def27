"""Exports take seconds: they are made once, in a cache that the tests of backends share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.models.base import TowerModel

NEEDS = {"openvino": ("openvino", "nncf"), "onnx": ("onnx", "onnxruntime", "onnxscript")}
Load = Callable[..., TowerModel]


@pytest.fixture(scope="session")
def shared_exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the whole session."""
    return tmp_path_factory.mktemp("exports")


@pytest.fixture
def load(shared_exports: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load_model` with the shared cache; skips where the backend's libraries are missing."""
    monkeypatch.setenv("DELTAENERGY_CACHE", str(shared_exports))

    def load_on(name: str | Path, backend: str, **options: Any) -> TowerModel:
        skip_without(backend)
        return de.load_model(name, backend=backend, **options)

    return load_on


def skip_without(backend: str) -> None:
    for name in NEEDS[backend]:
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"{name} is not installed: pip install 'deltaenergy[{backend}]'")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small pictures of coloured waves."""
    folder = tmp_path_factory.mktemp("waves")
    rng = np.random.default_rng(3)
    across, down = np.meshgrid(np.arange(32), np.arange(32))
    for i in range(40):
        phases, steps = rng.uniform(0, 6, 3), rng.uniform(0.05, 0.9, (2, 3))
        waves = np.sin(across[..., None] * steps[0] + down[..., None] * steps[1] + phases)
        Image.fromarray(((waves + 1) * 127).astype(np.uint8)).save(folder / f"{i:02}.png")
    return folder
