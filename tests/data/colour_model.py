"""A model that needs no torch: the feature is the picture's mean colour."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, Unreadable, load_rgb


class MeanColour:
    """Unit mean colours; one patch per picture, the same."""

    feature_dim = 3

    def describe(self) -> dict[str, Any]:
        return {"name": "mean-colour", "fingerprint": "1"}

    def encode(
        self, images: Sequence[ImageItem], *, patches: bool, batch_size: int, progress: object
    ) -> SimpleNamespace:
        features, items, unreadable = [], [], []
        for item in images:
            try:
                mean = np.asarray(load_rgb(item), np.float32).mean((0, 1))
            except UnreadableImage as error:
                unreadable.append(Unreadable(item.id, str(error)))
            else:
                features.append(mean / np.linalg.norm(mean))
                items.append(item)
        array = np.array(features, np.float32).reshape(-1, 3)
        return SimpleNamespace(features=array, items=items, unreadable=unreadable, patches=array[:, None])
