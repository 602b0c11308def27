"""PIL image -> pixel array, as the model was trained: resize the short side, centre crop, scale, normalise.

Equal to transformers' processors of CLIP, SigLIP, Chinese-CLIP and ALIGN (Pillow form) with Pillow before 13 (see
`resized`), written out to run in worker threads without the overhead of the processor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from deltaenergy.errors import ArtifactError
from deltaenergy.files.schema import Where, anything, list_of, number, record, truth, whole

if TYPE_CHECKING:
    import numpy.typing as npt

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# A strip of 1 × 100,000 pixels would be resized to 224 × 22,400,000. Of images longer than this many times their
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
        rgb = image if image.mode == "RGB" else image.convert("RGB")  # which would copy it, whatever its size
        image = resized(rgb, size, Image.Resampling(self.resample))
        left, top = (size[0] - self.crop) // 2, (size[1] - self.crop) // 2
        return image.crop((left, top, left + self.crop, top + self.crop))

    def normalise(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """The photometric part: a framed RGB image -> normalised float32 array (3, H, W)."""
        bytes_ = np.asarray(image)
        pixels = np.empty((3, *bytes_.shape[:2]), np.float32)
        # Each channel has only 256 values: a lookup takes a sixth of the time.
        for channel, levels in enumerate(_levels(self.mean, self.std)):
            np.take(levels, bytes_[:, :, channel], out=pixels[channel], mode="clip")  # "raise" would copy
        return pixels

    def picture(self, pixels: npt.NDArray[np.float32]) -> Image.Image:
        """The image as the model saw it: the inverse of `normalise`."""
        values = pixels * np.asarray(self.std, np.float32)[:, None, None]
        values += np.asarray(self.mean, np.float32)[:, None, None]
        return Image.fromarray((255 * values).round().clip(0, 255).astype(np.uint8).transpose(1, 2, 0))

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
    def from_processor_config(
        cls, config: Any, where: str, *, crops: bool = True, offset: bool = False
    ) -> Preprocessing:
        """From the `preprocessor_config.json` of a checkpoint (old and new spellings).

        Args:
            config: the file's content.
            where: the file, for messages.
            crops: whether the family's processor crops by default.
            offset: whether it is a processor of EfficientNet's kind, which can map pixels to −1 … 1 by
                `rescale_factor` 1/127.5 and `rescale_offset`, and divide by `image_std` once more with `include_top`.
        """
        place = Where(where)
        _CONFIG(config, place)
        if not (config.get("do_resize", True) and config.get("do_rescale", True)):
            raise ArtifactError(f"{where}: do_resize and do_rescale must be true.")
        shifted = offset and config.get("rescale_offset", False)
        steps = 127.5 if shifted else 255
        if abs(steps * config.get("rescale_factor", 1 / 255) - 1) > 1e-6:
            raise place.at("rescale_factor").wrong(config["rescale_factor"], f"1/{steps}")
        size = _side(config["size"], place.at("size"), shortest=True)
        if config.get("do_center_crop", crops):
            crop = _side(config.get("crop_size"), place.at("crop_size"), shortest=False)
        else:
            crop = size
            size = (size, size) if isinstance(size, int) else size
        if not isinstance(crop, int):
            if crop[0] != crop[1]:
                raise ArtifactError(
                    f"{where}: a crop of {crop[0]} × {crop[1]} is not square; only square crops are supported."
                )
            crop = crop[0]
        mean, std = (
            (config["image_mean"], config["image_std"]) if config.get("do_normalize", True) else ([0] * 3, [1] * 3)
        )
        if shifted:  # (2x − 1 − mean)/std = (x − (1 + mean)/2)/(std/2)
            mean, std = [(1 + value) / 2 for value in mean], [value / 2 for value in std]
        if offset and config.get("include_top", True):
            std = [value * again for value, again in zip(std, config["image_std"])]
        return cls(
            resize=size,
            crop=crop,
            mean=(float(mean[0]), float(mean[1]), float(mean[2])),
            std=(float(std[0]), float(std[1]), float(std[2])),
            resample=int(config.get("resample", int(Image.Resampling.BICUBIC))),
        )


def resized(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """`image` resized to (width, height), first in width, then in height, with every version of Pillow.

    Values are rounded between the two passes, and Pillow 13 runs the cheaper pass first, unlike earlier versions.
    Features must not depend on it, or stores and detectors would be read with other pixels under the same fingerprint.
    """
    return image.resize((size[0], image.height), resample).resize(size, resample)


# No tower takes larger images, and they would fill the memory.
_PIXELS = whole(1, 10**4)
_SWITCHES = ("do_resize", "do_rescale", "do_center_crop", "do_normalize", "rescale_offset", "include_top")
_CONFIG = record(
    {
        "size": anything(),
        "crop_size": anything(),
        "image_mean": list_of(number(-10, 10), length=3),
        "image_std": list_of(number(above=0, high=100), length=3),
        "resample": whole(0, 5),
        "rescale_factor": number(above=0),
        **dict.fromkeys(_SWITCHES, truth()),
    },
    others=True,
    may_lack=("crop_size", "resample", "rescale_factor", *_SWITCHES),
)


@functools.cache
def _levels(mean: tuple[float, ...], std: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """(x/255 − mean)/std of each channel for x = 0 … 255, (3, 256)."""
    levels = np.arange(256, dtype=np.float32) / np.float32(255)
    return (levels - np.asarray(mean, np.float32)[:, None]) / np.asarray(std, np.float32)[:, None]


def _side(value: Any, where: Where, *, shortest: bool) -> int | tuple[int, int]:
    """A length, `{"shortest_edge": length}` if allowed, or (height, width)."""
    if not isinstance(value, Mapping):
        _PIXELS(value, where)
        return int(value)
    if shortest and "shortest_edge" in value:
        _PIXELS(value["shortest_edge"], where.at("shortest_edge"))
        return int(value["shortest_edge"])
    record({"height": _PIXELS, "width": _PIXELS})(value, where)
    return int(value["height"]), int(value["width"])


def _without_ends(image: Image.Image) -> Image.Image:
    """The middle of an extremely long image; other images unchanged."""
    width, height = image.size
    longest = LONGEST_RATIO * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))
