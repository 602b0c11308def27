"""A model in one file: the bundled `lite` on greyscale images, with a fingerprint of its own.

features(image) = lite(grey(image))
"""

from __future__ import annotations

import torch
from PIL import Image

from deltaenergy.models import Preprocessing, TowerModel, load_lite


class Grey(Preprocessing):
    """Another model's preprocessing, of the greyscale image."""

    def frame(self, image: Image.Image) -> Image.Image:
        """Framed as ever, without colours."""
        return super().frame(image).convert("L").convert("RGB")


def load(device: torch.device, dtype: torch.dtype) -> TowerModel:
    """Called by `load_model("grey-lite")`."""
    lite = load_lite(device, dtype)
    known = {name: getattr(lite.preprocessing, name) for name in Preprocessing.__dataclass_fields__}
    return lite.derived("grey", name="grey-lite", preprocessing=Grey(**known))
