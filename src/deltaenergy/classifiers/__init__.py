"""Classifiers turn image features into similarities per class: zero-shot from names, or tuned on a few images.

The names below are imported on first use: classifiers without tuning, and the building blocks of tuning methods.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
    from deltaenergy.classifiers.methods import Method, Term, TrainViews, list_methods, make_method, register_method
    from deltaenergy.classifiers.precomputed import PrecomputedClassifier
    from deltaenergy.classifiers.zero_shot import TemplateClassifier, TemplateMethod, ZeroShotClassifier
    from deltaenergy.core.needs import Need

__all__ = [
    "Classifier",
    "Inputs",
    "Method",
    "Need",
    "Outputs",
    "PrecomputedClassifier",
    "TemplateClassifier",
    "TemplateMethod",
    "Term",
    "TrainBatch",
    "TrainViews",
    "ZeroShotClassifier",
    "list_methods",
    "make_method",
    "register_method",
]
_MODULES = {
    **dict.fromkeys(("Classifier", "Inputs", "Need", "Outputs", "TrainBatch"), "base"),
    **dict.fromkeys(("Method", "Term", "TrainViews", "list_methods", "make_method", "register_method"), "methods"),
    **dict.fromkeys(("TemplateClassifier", "TemplateMethod", "ZeroShotClassifier"), "zero_shot"),
    "PrecomputedClassifier": "precomputed",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
