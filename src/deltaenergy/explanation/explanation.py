"""One explained image: its verdict, its heatmap, and the overlay.

Colours are viridis (van der Walt & Smith, 2015), whose lightness rises evenly from dark blue to yellow, so the order is
the same for colour-blind readers and in grey print.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from deltaenergy.core.text import HasRepr
from deltaenergy.detector.verdict import Verdict
from deltaenergy.errors import InputError
from deltaenergy.explanation.methods import SCORE
from deltaenergy.files import replacing
from deltaenergy.report import images

# Nine of viridis' colours, interpolated linearly.
VIRIDIS = (
    (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128), (94, 201, 98),
    (173, 220, 48), (253, 231, 37),
)  # fmt: skip
# How much of a heatmap's colour covers the image, which is shown in grey so its own colours do not mislead.
OPACITY = 0.6
_DOWN, _ACROSS = ("upper", "middle", "lower"), ("left", "centre", "right")


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(HasRepr):
    """A heatmap of one image, with its verdict and target.

    Attributes:
        id: the image's path, or its position in the input.
        label: the closest class.
        confidence: its softmax probability at the model's own temperature.
        verdict: of the detector; None for a classifier or without a threshold.
        method: the heatmap method.
        target: `score`, or the name of a class.
        value: the score, or the similarity of that class.
        heatmap: (h, w), larger = supports the target more. Grad-CAM and rollout show only what supports it; in the maps
            of the value path and of occlusion, negative values count against it.
        image: the image as the model saw it, resized and cropped.
        similarities: with every class (K,).
        features: the unit features of the image (D,).
    """

    id: str
    label: str
    confidence: float
    verdict: Verdict | None
    method: str
    target: str
    value: float
    heatmap: npt.NDArray[np.float32]
    image: Image.Image
    similarities: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]

    def overlay(self, opacity: float = OPACITY) -> Image.Image:
        """The heatmap, from its smallest to its largest value, over the image in grey."""
        if not 0 <= opacity <= 1:
            raise InputError(f"opacity must be from 0 to 1, got {opacity!r}.")
        return overlay(self.heatmap, self.image, opacity)

    def save(self, path: str | Path) -> None:
        """Write the overlay as a PNG with a text description."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise InputError(f"{path}: the name must end in .png.")
        text = PngInfo()
        text.add_itxt("Description", self.in_words)
        text.add_itxt("Software", "deltaenergy")
        with replacing(path) as temporary:
            self.overlay().save(temporary, format="PNG", pnginfo=text)

    @property
    def subject(self) -> str:
        return "what drives the score" if self.target == SCORE else f"what supports {self.target}"

    @property
    def peak(self) -> str:
        """Where the heatmap is strongest, such as `upper left`; empty if it is the same everywhere."""
        if not self.heatmap.max() > self.heatmap.min():
            return "nowhere"
        row, column = np.unravel_index(int(self.heatmap.argmax()), self.heatmap.shape)
        down = _DOWN[int(3 * (row + 0.5) / self.heatmap.shape[0])]
        across = _ACROSS[int(3 * (column + 0.5) / self.heatmap.shape[1])]
        return "centre" if (down, across) == ("middle", "centre") else f"{down} {across}"

    @property
    def in_words(self) -> str:
        """The alternative text of the overlay."""
        name = PurePath(self.id).name or self.id
        where = "it is the same everywhere" if self.peak == "nowhere" else f"strongest at the {self.peak}"
        return f"Heatmap of {name}: {self.subject}, by {self.method}; {where}."

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {"image": self.id, "label": self.label, "confidence": f"{self.confidence:.3f}"}
        if self.verdict is not None:
            facts["verdict"] = self.verdict.verdict
        facts |= {"shows": self.subject, "method": self.method, "value": f"{self.value:.4g}", "strongest": self.peak}
        return facts

    def _repr_html_(self) -> str:
        shown = "".join(
            f"<img src='{jpeg_uri(image)}' alt='{escape(text, quote=True)}' width='224' style='margin-right:8px'>"
            for image, text in ((self.image, f"{self.id}, as the model saw it"), (self.overlay(), self.in_words))
        )
        return f"<div>{shown}{super()._repr_html_()}</div>"


def overlay(heatmap: npt.NDArray[np.floating], image: Image.Image, opacity: float = OPACITY) -> Image.Image:
    grey = np.asarray(image.convert("L"), np.float64)[..., None]
    colours = coloured(enlarged(heatmap, image.size)).astype(np.float64)
    return Image.fromarray(((1 - opacity) * grey + opacity * colours).round().astype(np.uint8))


def coloured(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Values from 0 to 1 (…) -> RGB (…, 3)."""
    places = np.linspace(0, 1, len(VIRIDIS))
    channels = [np.interp(values, places, channel) for channel in zip(*VIRIDIS)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def normalised(heatmap: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Scaled from 0 (smallest value) to 1 (largest); all 0 if every value is the same."""
    values = np.asarray(heatmap, np.float64)
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return scaled.astype(np.float32)


def enlarged(heatmap: npt.NDArray[np.floating], size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The normalised heatmap at (width, height), interpolated smoothly."""
    small = Image.fromarray(normalised(heatmap))
    return np.asarray(small.resize(size, Image.Resampling.BICUBIC), np.float32).clip(0, 1)


def jpeg_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85, optimize=True)
    return images.jpeg_uri(buffer.getvalue())
