"""Occlusion: cover a part of the image, and see how much is lost (Zeiler & Fergus, ECCV 2014).

    map_ij = mean over the windows W that cover cell ij of  y(x) − y(x with W covered)

It asks nothing of the model but its answers, so that it works for every tower and score, and is what the other methods
are compared with. Windows of two by two cells slide by one cell and over the edges, so that each cell is covered by
four of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from deltaenergy.core.specs import Count, bounded
from deltaenergy.errors import InputError
from deltaenergy.explanation.arrays import alike, check_shape, tensors

CELLS = 7
_WINDOW = 2
ValuesOf = Callable[[torch.Tensor], torch.Tensor]


@bounded
def occlusion(
    values_of: ValuesOf, pixels: Any, *, cells: Count = CELLS, fill: float = 0.0, images_at_once: Count = 32
) -> Any:
    """The map (cells, cells) of one image by the formula above, signed.

    Args:
        values_of: images (n, 3, H, W) -> y of each (n,).
        pixels: one normalised image (3, H, W).
        cells: per side; (cells + 1)² covered images are looked at.
        fill: what covers; 0 is the mean colour of normalised pixels.
        images_at_once: how many covered images `values_of` gets at a time.
    """
    (image,) = tensors(pixels=pixels)
    check_shape("pixels", image, ("channels", "H", "W"))
    if cells > min(image.shape[1:]):
        raise InputError(f"occlusion: an image of {image.shape[1]} × {image.shape[2]} pixels has no {cells} cells.")
    rows, columns = (np.linspace(0, side, cells + 1).round().astype(int) for side in image.shape[1:])
    windows = [
        (slice(max(i, 0), i + _WINDOW), slice(max(j, 0), j + _WINDOW))
        for i in range(1 - _WINDOW, cells)
        for j in range(1 - _WINDOW, cells)
    ]
    base = values_of(image[None]).double()[0]
    lost: list[torch.Tensor] = []
    for start in range(0, len(windows), images_at_once):
        part = windows[start : start + images_at_once]
        covered = image.repeat(len(part), 1, 1, 1)
        for one, (down, across) in zip(covered, part):
            one[:, _span(rows, down), _span(columns, across)] = fill
        lost.append(base - values_of(covered).double())
    total = torch.zeros(cells, cells, dtype=torch.float64, device=base.device)
    for (down, across), change in zip(windows, torch.cat(lost)):
        total[down, across] += change
    return alike((total / _WINDOW**2).cpu(), pixels)


def _span(edges: Any, cells: slice) -> slice:
    return slice(int(edges[cells.start]), int(edges[min(cells.stop, len(edges) - 1)]))
