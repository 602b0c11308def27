"""Why an image got its verdict: heatmaps, ΔEnergy by class, and why a rejected image was rejected.

`maps` has the heatmaps as pure functions of tensors, `methods` makes them from pixels, and `explain` is
`deltaenergy.explain(detector, images)`.
"""

from __future__ import annotations

from deltaenergy.explanation.explain import Explainer, Explanations
from deltaenergy.explanation.explanation import Explanation
from deltaenergy.explanation.maps import grad_cam, occlusion, rollout, value_path
from deltaenergy.explanation.methods import METHODS
from deltaenergy.explanation.page import write_explanations

__all__ = [
    "METHODS",
    "Explainer",
    "Explanation",
    "Explanations",
    "grad_cam",
    "occlusion",
    "rollout",
    "value_path",
    "write_explanations",
]
