"""PIL image -> pixel array, as the model was trained: resize the short side, centre crop, scale, normalise.

Equal to transformers' CLIPImageProcessor (Pillow form), written out so that it runs in worker threads without
building the processor's batch machinery for each image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from deltaenergy.errors import ArtifactError

if TYPE_CHECKING:
    import numpy.typing as npt

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# A strip of 1 × 100,000 pixels would be resized to 224 × 22,400,000. Of pictures longer than this many times their
# width only the middle is resized; the centre crop comes from there anyway.
LONGEST_RATIO = 100


@dataclass(frozen=True)
class Preprocessing:
    """`resize`: length of the short side, or (height, width); `crop`: side of the centre crop; pixels become
    (x/255 − mean)/std.
    """

    resize: int | tuple[int, int] = 224
    crop: int = 224
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    resample: int = int(Image.Resampling.BICUBIC)

    def __call__(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """RGB image -> float32 array (3, crop, crop)."""
        return self.normalise(self.frame(image))

    def frame(self, image: Image.Image) -> Image.Image:
        """The geometric part: the RGB image resized and centre-cropped."""
        if isinstance(self.resize, int):
            image = _without_ends(image)
            width, height = image.size
            short, long = min(width, height), max(width, height)
            # Truncation, not rounding, of the long side: what CLIP's own preprocessing does.
            other = int(self.resize * long / short)
            size = (self.resize, other) if width <= height else (other, self.resize)
        else:
            size = (self.resize[1], self.resize[0])
        image = image.convert("RGB").resize(size, Image.Resampling(self.resample))
        left, top = (size[0] - self.crop) // 2, (size[1] - self.crop) // 2
        return image.crop((left, top, left + self.crop, top + self.crop))

    def normalise(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """The photometric part: a framed RGB image -> normalised float32 array (3, H, W)."""
        pixels: npt.NDArray[np.float32] = np.asarray(image, dtype=np.float32) / np.float32(255)
        pixels -= np.asarray(self.mean, np.float32)
        pixels /= np.asarray(self.std, np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        resize = list(self.resize) if isinstance(self.resize, tuple) else self.resize
        return {
            "resize": resize,
            "crop": self.crop,
            "mean": list(self.mean),
            "std": list(self.std),
            "resample": self.resample,
        }

    @classmethod
    def from_processor_config(cls, config: Mapping[str, Any], where: str) -> Preprocessing:
        """From the `preprocessor_config.json` that travels with a CLIP checkpoint (old and new spellings)."""
        size, crop = config.get("size", 224), config.get("crop_size", 224)
        if isinstance(size, Mapping):
            size = size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])
        if isinstance(crop, Mapping):
            if crop["height"] != crop["width"]:
                raise ArtifactError(f"{where}: crop_size {dict(crop)} is not square; only square crops are supported.")
            crop = crop["height"]
        if not config.get("do_center_crop", True):
            crop = size if isinstance(size, int) else size[0]
            size = (crop, crop)
        mean, std = config.get("image_mean", CLIP_MEAN), config.get("image_std", CLIP_STD)
        return cls(
            resize=size if isinstance(size, int) else (int(size[0]), int(size[1])),
            crop=int(crop),
            mean=(float(mean[0]), float(mean[1]), float(mean[2])),
            std=(float(std[0]), float(std[1]), float(std[2])),
            resample=int(config.get("resample", int(Image.Resampling.BICUBIC))),
        )


def _without_ends(image: Image.Image) -> Image.Image:
    """The middle of an extremely long picture; any other as it is."""
    width, height = image.size
    longest = LONGEST_RATIO * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))
