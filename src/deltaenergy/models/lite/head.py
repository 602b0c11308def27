"""From the image tower's features to the joint space of images and words, and CLIP-like cosines.

An image with pooled features f (or a patch with the features at its place) becomes
    e = normalise( normalise((g − μ) A) + softmax(W g + b) S ),   g = f + U relu(V (f − μ)),
where W, b are the image tower's own classifier, A keeps the appearance of an image, the rows of S are the meanings of
the 1,000 classes (Norouzi et al., ConSE, ICLR 2014), and U, V are a residual adapter. A text, whose tower is only 256
wide, is spread over the whole space by one unit for each of the 1,000 classes,
    t = normalise( p + Y gelu(X p + x) ),   p = normalise(projected state at the end token),
so the names of known things are near their images.
Three constant coordinates then give two unit vectors e, t the cosine α e·t + β, in the range of CLIP's:
    image (√α e, √β, 0, √γ),   text (√α t, √β, √γ, 0),   γ = 1 − α − β.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from deltaenergy.models.towers.text import unit


class CosineRange:
    """α and β of the cosine α e·t + β."""

    def __init__(self, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta
        self._constants = (math.sqrt(beta), math.sqrt(1 - alpha - beta))

    def image(self, joint: torch.Tensor) -> torch.Tensor:
        """Vectors in the joint space -> unit image features."""
        shared, own = self._constants
        return self._append(joint, (shared, 0.0, own))

    def text(self, projected: torch.Tensor) -> torch.Tensor:
        """Vectors in the joint space -> unit text features."""
        shared, own = self._constants
        return self._append(projected, (shared, own, 0.0))

    def _append(self, joint: torch.Tensor, constants: tuple[float, float, float]) -> torch.Tensor:
        scaled = math.sqrt(self.alpha) * unit(joint)
        tail = scaled.new_tensor(constants).expand(*scaled.shape[:-1], 3)
        return torch.cat([scaled, tail], -1)


class Refiner(nn.Module):
    """Projected text states -> joint space, by the formula above."""

    def __init__(self, classes: int, dimensions: int) -> None:
        super().__init__()
        self.down = nn.Linear(dimensions, classes)
        self.up = nn.Linear(classes, dimensions, bias=False)

    def forward(self, projected: torch.Tensor) -> torch.Tensor:
        """(..., dimensions) -> unit vectors (..., dimensions)."""
        plain = unit(projected).to(self.down.weight.dtype)
        return unit(plain + self.up(nn.functional.gelu(self.down(plain))))


class JointHead(nn.Module):
    """Features of the image tower -> joint space, by the formula above."""

    def __init__(self, channels: int, classes: int, dimensions: int, bottleneck: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(channels))
        self.look = nn.Parameter(torch.zeros(channels, dimensions))
        self.meaning = nn.Parameter(torch.zeros(classes, dimensions))
        self.down = nn.Linear(channels, bottleneck)
        self.up = nn.Linear(bottleneck, channels, bias=False)

    def forward(self, features: torch.Tensor, classifier: nn.Module) -> torch.Tensor:
        """(..., channels) -> unit vectors (..., dimensions)."""
        centred = features - self.mean
        adapted = features + self.up(torch.relu(self.down(centred)))
        looks = unit((adapted - self.mean) @ self.look)
        beliefs = torch.softmax(classifier(adapted).float(), -1)
        return unit(looks + beliefs @ self.meaning.float())
