"""The images that 8-bit ranges are set on, as pixels, and a hash of them that becomes part of the fingerprint."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import InputError
from deltaenergy.models.encoding import decode_ahead
from deltaenergy.models.features import is_feature_array
from deltaenergy.source import load_images
from deltaenergy.store.store import StoredImage

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.models.base import TowerModel

# Ranges change little beyond some hundred images; below some dozens they hang on single ones.
MOST, LEAST = 300, 30


@dataclass(frozen=True)
class CalibrationPixels:
    """Preprocessed images (N, 3, side, side), and the hash of them."""

    pixels: npt.NDArray[np.float32]
    digest: str


def calibration_pixels(model: TowerModel, images: Any) -> CalibrationPixels:
    """At most `MOST` of the images, evenly spaced over them all; those that cannot be read are left out."""
    if is_feature_array(images):
        raise InputError("calibration_images must be images, not features: they go through the image tower.")
    items = load_images(images)
    if any(isinstance(item.source, StoredImage) for item in items):
        raise InputError("calibration_images must be images, not a feature store: they go through the image tower.")
    chosen = [items[i] for i in np.unique(np.linspace(0, len(items) - 1, min(MOST, len(items))).round().astype(int))]
    found = [pixels for _, pixels in decode_ahead(model, chosen, ahead=64)]
    readable = [pixels for pixels in found if not isinstance(pixels, str)]
    if len(readable) < LEAST:
        raise InputError(
            f"calibration_images holds {len(readable)} readable image(s); 8-bit ranges need at least {LEAST}, "
            "of the kind that the model will see."
        )
    if len(readable) < len(found):
        warnings.warn(f"{len(found) - len(readable)} calibration image(s) could not be read.", stacklevel=3)
    array = np.stack(readable)
    return CalibrationPixels(array, hashlib.blake2b(array.data, digest_size=8).hexdigest())
