"""Grad-CAM for convolutional towers (Selvaraju et al., ICCV 2017, eqs. 1 and 2).

    α_c = mean_ij ∂y/∂A_cij,   map_ij = max( Σ_c α_c A_cij, 0 )

A is the last map of the tower and y what is explained.
"""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.explanation.arrays import alike, check_shape, tensors


def grad_cam(feature_map: Any, gradient: Any) -> Any:
    """The map (N, h, w) by the formula above; nothing is negative.

    Args:
        feature_map: A (N, C, h, w).
        gradient: ∂y/∂A of the same shape.
    """
    a, towards = tensors(feature_map=feature_map, gradient=gradient)
    check_shape("feature_map", a, ("N", "C", "h", "w"))
    check_shape("gradient", towards, tuple(a.shape))
    weights = towards.to(a).mean((2, 3))
    return alike(torch.einsum("nc,nchw->nhw", weights, a).clamp(min=0), feature_map)
