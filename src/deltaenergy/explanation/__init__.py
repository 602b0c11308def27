"""Why a verdict is what it is: maps over the image, the score taken apart, and what a rejected image was near to.

Pure functions first (`value_path`, `rollout`, `grad_cam`, `occlusion`: tensors or arrays in, the same out); a thin
`Explanation` on top. `deltaenergy.explain(detector, images)` is `explain.explain`.
"""

from __future__ import annotations

from deltaenergy.explanation.explain import Explainer, Explanations
from deltaenergy.explanation.explanation import Explanation
from deltaenergy.explanation.grad_cam import grad_cam
from deltaenergy.explanation.maps import value_path
from deltaenergy.explanation.methods import METHODS
from deltaenergy.explanation.occlusion import occlusion
from deltaenergy.explanation.rollout import rollout

__all__ = ["METHODS", "Explainer", "Explanation", "Explanations", "grad_cam", "occlusion", "rollout", "value_path"]
