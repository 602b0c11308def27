"""Models turn images and text into unit features: CLIP-style models in transformers format, and the bundled `lite`.

The names below are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.models.base import Model, TowerModel
    from deltaenergy.models.lite.model import load_lite
    from deltaenergy.models.loading.load import load_model
    from deltaenergy.models.precomputed import PrecomputedModel
    from deltaenergy.models.preprocessing import Preprocessing

__all__ = ["Model", "PrecomputedModel", "Preprocessing", "TowerModel", "load_lite", "load_model"]
_MODULES = {
    "Model": "base",
    "PrecomputedModel": "precomputed",
    "Preprocessing": "preprocessing",
    "TowerModel": "base",
    "load_lite": "lite.model",
    "load_model": "loading.load",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
