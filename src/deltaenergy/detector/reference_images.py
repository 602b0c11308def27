"""Calibration images that a detector stores on request, to compare rejected images with.

For each image: its name, its unit feature, its predicted class with the similarity, and a thumbnail of its central
square. They are in the detector's files, in the order of its calibration scores. Anyone who has the detector can see
the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.data.items import square_jpeg
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files.schema import Check, TensorSpec, list_of, record, text

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.scoring import Scored

FORMAT = "kept images 1"
PREFIX = "kept."
# About 3 kB each.
SIDE, QUALITY = 96, 75
CHECK: Check = record({"format": text(among={FORMAT}), "names": list_of(text(blank=True))})


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Row i of everything belongs to the i-th smallest calibration score.

    Attributes:
        names: of the images.
        features: unit features (n, D).
        named: position of the closest class (n,).
        similarity: the similarity of that class (n,).
        thumbnails: JPEG files; empty if there was no image.
    """

    names: tuple[str, ...]
    features: npt.NDArray[np.float32]
    named: npt.NDArray[np.int64]
    similarity: npt.NDArray[np.float32]
    thumbnails: tuple[bytes, ...]

    @classmethod
    def of(cls, scored: Scored) -> KeptImages:
        """From the results for calibration images, in their order; images are read again."""
        if scored.features is None or scored.similarity is None:
            raise InputError("keep_images needs the features of the calibration images: score them with keep_features.")
        thumbnails = tuple(square_jpeg(item, SIDE, QUALITY) or b"" for item in scored.items)
        names = tuple(item.id for item in scored.items)
        return cls(names, scored.features, scored.predicted, scored.similarity, thumbnails)

    def __len__(self) -> int:
        return len(self.names)

    def record(self) -> dict[str, Any]:
        """The entry in the detector's record; `CHECK` checks it."""
        return {"format": FORMAT, "names": list(self.names)}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The entries in the detector's tensors; `specs` checks them."""
        ends = np.cumsum([len(one) for one in self.thumbnails], dtype=np.int64)
        found = {
            "features": torch.from_numpy(np.ascontiguousarray(self.features)),
            "named": torch.from_numpy(np.ascontiguousarray(self.named)),
            "similarity": torch.from_numpy(np.ascontiguousarray(self.similarity)),
            "thumbnails": torch.from_numpy(np.frombuffer(b"".join(self.thumbnails), np.uint8).copy()),
            "ends": torch.from_numpy(ends),
        }
        return {PREFIX + name: tensor for name, tensor in found.items()}


def specs(images: int, classes: int) -> dict[str, TensorSpec]:
    """Shapes and types of the tensors, by number of calibration images and classes."""
    return {
        f"{PREFIX}features": TensorSpec((images, None), ("float32",)),
        f"{PREFIX}named": TensorSpec((images,), ("int64",), low=0, high=classes - 1),
        f"{PREFIX}similarity": TensorSpec((images,), ("float32",)),
        f"{PREFIX}thumbnails": TensorSpec((None,), ("uint8",)),
        f"{PREFIX}ends": TensorSpec((images,), ("int64",), ascending=True, low=0),
    }


def restore(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], feature_dim: int, file: str) -> KeptImages:
    """The stored images of a detector whose record and tensors were checked separately."""
    features, named, similarity, joined, ends = (
        tensors[PREFIX + name].numpy() for name in ("features", "named", "similarity", "thumbnails", "ends")
    )
    names = tuple(saved["names"])
    if len(names) != len(ends):
        raise ArtifactError(f"{file}: there are {len(names)} names for {len(ends)} kept images.")
    if features.shape[1] != feature_dim:
        raise ArtifactError(
            f"{file}: the kept images have features of {features.shape[1]} numbers, and the model's have {feature_dim}."
        )
    if len(joined) != (ends[-1] if len(ends) else 0):
        raise ArtifactError(f"{file}: the kept images do not fill their {len(joined)} bytes.")
    cuts = [0, *ends.tolist()]
    data = joined.tobytes()
    thumbnails = tuple(data[start:end] for start, end in pairwise(cuts))
    return KeptImages(names, features, named, similarity, thumbnails)
