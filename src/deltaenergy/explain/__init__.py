"""Why a verdict is what it is: maps over the image, the score taken apart, and what a rejected image was near to.

Pure functions first (`value_path`, `rollout`, `grad_cam`, `occlusion`: tensors or arrays in, the same out); a thin
`Explanation` on top. The package itself can be called: `deltaenergy.explain(detector, images)` is `run.explain`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from deltaenergy.explain.explanation import Explanation
from deltaenergy.explain.grad_cam import grad_cam
from deltaenergy.explain.methods import METHODS
from deltaenergy.explain.occlusion import occlusion
from deltaenergy.explain.rollout import rollout
from deltaenergy.explain.run import Explainer, Explanations
from deltaenergy.explain.value_path import value_path

__all__ = ["METHODS", "Explainer", "Explanation", "Explanations", "grad_cam", "occlusion", "rollout", "value_path"]


class _Callable(ModuleType):
    """A module that can be called: `deltaenergy.explain` is both this package and the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Explanations:
        from deltaenergy.explain.run import explain

        return explain(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
