"""Four heatmaps as pure functions of tensors; y is what they explain, a similarity or a score.

`methods` runs the image encoder as far as needed, and calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch

CELLS = 7
_WINDOW = 2


def value_path(
    patches: torch.Tensor, gradient: torch.Tensor, patch_gradient: torch.Tensor | None = None
) -> torch.Tensor:
    """How each patch would score as the whole image (GL-MCM, IJCV 2025; after MaskCLIP, ECCV 2022); signed.

        map_p = u_p · ∂y/∂z  ( + u_p · ∂y/∂u_p  where y depends on the patches themselves )

    For the similarity with the text of class k, y = z · t_k, this is the patch's own similarity u_p · t_k. For a score
    it is the rate of change towards the patch. Patches take the value path of the last block, without its attention;
    in a convolutional encoder they are the places of its last map.

    Args:
        patches: unit patch features u (N, P, D).
        gradient: ∂y/∂z (N, D).
        patch_gradient: ∂y/∂u (N, P, D).
    """
    found = torch.einsum("npd,nd->np", patches, gradient)
    return found if patch_gradient is None else found + (patches * patch_gradient).sum(-1)


def rollout(attention: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """How much each token entered the class token (N, T), by gradient × attention; nothing is negative.

        Ā_b = mean_h max(∇A_b ⊙ A_b, 0),   R ← R + Ā_b R  for the blocks b = 1, 2, …, from R = 1

    (Chefer, Gur & Wolf, ICCV 2021, eqs. 5 and 6.) Row 0 of R belongs to the class token. Only that row is computed,
    from the last block to the first: r ← r + r Ā_b from r = (1, 0, …, 0). Learned tokens that a block replaces have no
    gradient in the blocks before it, so nothing flows through them.

    Args:
        attention: A_b of each block, first to last, (N, heads, T, T); of the last block its first rows are enough.
        gradients: ∂y/∂A_b.
    """
    row = torch.zeros_like(attention[-1][:, 0, 0])
    row[:, 0] = 1
    for weights, gradient in zip(reversed(attention), reversed(gradients)):
        mixed = (weights * gradient).clamp(min=0).mean(dim=1)
        row = row + torch.einsum("nq,nqt->nt", row[:, : mixed.shape[1]], mixed)
    return row


def grad_cam(feature_map: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Grad-CAM of a convolutional encoder's last map (N, h, w); nothing is negative.

        α_c = mean_ij ∂y/∂A_cij,   map_ij = max( Σ_c α_c A_cij, 0 )

    (Selvaraju et al., ICCV 2017, eqs. 1 and 2.)

    Args:
        feature_map: A (N, C, h, w).
        gradient: ∂y/∂A of the same shape.
    """
    return torch.einsum("nc,nchw->nhw", gradient.mean((2, 3)), feature_map).clamp(min=0)


def occlusion(
    values_of: Callable[[torch.Tensor], torch.Tensor],
    pixels: torch.Tensor,
    *,
    cells: int = CELLS,
    fill: float = 0.0,
    images_at_once: int = 32,
) -> torch.Tensor:
    """What is lost when a part of the image is covered (cells, cells), signed (Zeiler & Fergus, ECCV 2014).

        map_ij = mean over the windows W that cover cell ij of  y(x) − y(x with W covered)

    It needs only a model's outputs, so it works for every encoder and score. Windows of two by two cells slide by one
    cell, also over the edges, so four windows cover each cell.

    Args:
        values_of: images (n, 3, H, W) -> y of each (n,); with several numbers per image, (n, D), a map has as many.
        pixels: one normalised image (3, H, W).
        cells: per side; (cells + 1)² covered images are classified.
        fill: value of covered pixels; 0 is the mean colour.
        images_at_once: how many covered images `values_of` gets at a time.
    """
    rows, columns = ([round(i * side / cells) for i in range(cells + 1)] for side in pixels.shape[1:])
    starts = range(1 - _WINDOW, cells)
    windows = [
        tuple(slice(max(at, 0), min(at + _WINDOW, cells)) for at in corner) for corner in product(starts, starts)
    ]
    base = values_of(pixels[None]).double()[0]
    total = torch.zeros(cells, cells, *base.shape, dtype=torch.float64, device=base.device)
    for start in range(0, len(windows), images_at_once):
        some = windows[start : start + images_at_once]
        covered = pixels.repeat(len(some), 1, 1, 1)
        for image, (down, across) in zip(covered, some):
            image[:, rows[down.start] : rows[down.stop], columns[across.start] : columns[across.stop]] = fill
        for (down, across), lost in zip(some, base - values_of(covered).double()):
            total[down, across] += lost
    return (total / _WINDOW**2).cpu()
