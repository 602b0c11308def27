"""The value path: what each patch would say if it were the whole image (GL-MCM, IJCV 2025; after MaskCLIP, ECCV 2022).

    map_p = u_p · ∂y/∂z  ( + u_p · ∂y/∂u_p  where y looks at patches itself ),   u_p unit patch features

y is what is explained. For the similarity of class k with its text, y = z · t_k, this is the patch's own similarity
u_p · t_k. For a score it is the score's rate of change towards the patch: a patch with a positive value speaks for
"known", one with a negative value against it. Patches take the value path of the last block, without its attention; in
a convolutional tower they are the places of its last map.
"""

from __future__ import annotations

from typing import Any

import torch

from deltaenergy.explanation.arrays import alike, check_shape, tensors


def value_path(patches: Any, gradient: Any, patch_gradient: Any = None) -> Any:
    """The map (N, P) by the formula above, signed.

    Args:
        patches: unit patch features u (N, P, D).
        gradient: ∂y/∂z (N, D).
        patch_gradient: ∂y/∂u (N, P, D), where y looks at patches.
    """
    u, towards = tensors(patches=patches, gradient=gradient)
    check_shape("patches", u, ("N", "P", "D"))
    check_shape("gradient", towards, (u.shape[0], u.shape[2]))
    found = torch.einsum("npd,nd->np", u, towards.to(u))
    if patch_gradient is not None:
        (own,) = tensors(patch_gradient=patch_gradient)
        check_shape("patch_gradient", own, tuple(u.shape))
        found = found + (u * own.to(u)).sum(-1)
    return alike(found, patches)
