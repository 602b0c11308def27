"""An explanation: one image, what was said of it, and a map of what spoke for that."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from deltaenergy.core.display import HasRepr
from deltaenergy.detector.predictions import Verdict
from deltaenergy.errors import InputError
from deltaenergy.explanation.colours import OPACITY, laid_over
from deltaenergy.explanation.targets import SCORE
from deltaenergy.files import replacing

if TYPE_CHECKING:
    import numpy.typing as npt

_DOWN, _ACROSS = ("upper", "middle", "lower"), ("left", "centre", "right")


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(HasRepr):
    """A map over one image, and what it belongs to.

    Attributes:
        id: the image's path, or its position in the input.
        label: the most similar class.
        confidence: its softmax probability at the model's own temperature.
        verdict: of the detector; None for a classifier, or for a detector without a threshold.
        method: that made the map.
        target: what is explained: `score`, or the name of a class.
        value: the score, or the similarity of that class.
        heatmap: (h, w), larger = speaks more for the target. Grad-CAM and rollout show only what speaks for it; in the
            maps of the value path and of occlusion negative values speak against it.
        image: what the model saw, framed as it frames images.
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
        """The map, from its smallest to its largest value, over the picture in grey."""
        if not 0 <= opacity <= 1:
            raise InputError(f"opacity must be from 0 to 1, got {opacity!r}.")
        return laid_over(self.heatmap, self.image, opacity)

    def save(self, path: str | Path) -> None:
        """Write the overlay as a PNG, whose text says what it shows."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise InputError(f"{path}: an overlay is saved as a PNG, so that its name must end in .png.")
        text = PngInfo()
        text.add_itxt("Description", self.in_words)
        text.add_itxt("Software", "deltaenergy")
        with replacing(path) as temporary:
            self.overlay().save(temporary, format="PNG", pnginfo=text)

    @property
    def subject(self) -> str:
        """What the map shows, in a few words."""
        return "what moves the score" if self.target == SCORE else f"what speaks for {self.target}"

    @property
    def peak(self) -> str:
        """Where the map is strongest, such as `upper left`; nowhere if it is the same everywhere."""
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
        return f"Map over {name} of {self.subject}, by {self.method}: {where}."

    def _repr_fields(self) -> dict[str, object]:
        facts: dict[str, object] = {"image": self.id, "label": self.label, "confidence": f"{self.confidence:.3f}"}
        if self.verdict is not None:
            facts["verdict"] = self.verdict.verdict
        facts |= {"shows": self.subject, "method": self.method, "value": f"{self.value:.4g}", "strongest": self.peak}
        return facts

    def _repr_html_(self) -> str:
        pictures = "".join(
            f"<img src='{jpeg_uri(picture)}' alt='{escape(text, quote=True)}' width='224' style='margin-right:8px'>"
            for picture, text in ((self.image, f"{self.id}, as the model saw it"), (self.overlay(), self.in_words))
        )
        return f"<div>{pictures}{super()._repr_html_()}</div>"


def jpeg_uri(picture: Image.Image) -> str:
    """A picture as the `src` of an image element."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
