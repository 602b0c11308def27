"""`lite`, the bundled model: works offline, on a CPU, in milliseconds.

A demo model; do not benchmark with it. Its image tower was trained only on the 1,000 classes of ImageNet; other names
are guessed from the meaning of words. README.md next to this file is its model card.

An image with pooled features f (or a patch with the features at its place) becomes
    e = normalise( normalise((g − μ) A) + softmax(W g + b) S ),   g = f + U relu(V (f − μ)),
where W, b are the image tower's own classifier, A keeps the appearance of an image, the rows of S are the meanings of
the 1,000 classes (Norouzi et al., ConSE, ICLR 2014), and U, V are a residual adapter.
A text, whose tower is only 256 wide, is spread over the whole space by one unit for each of the 1,000 classes,
    t = normalise( p + Y gelu(X p + x) ),   p = normalise(projected state at the end token),
so the names of known things are near their images.
Three constant coordinates then give two unit vectors e, t the cosine α e·t + β, in the range of CLIP's:
    image (√α e, √β, 0, √γ),   text (√α t, √β, √γ, 0),   γ = 1 − α − β.
"""

from __future__ import annotations

import functools
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deltaenergy.files.reading import read_json
from deltaenergy.models.lite.network import (
    CLASSES,
    FEATURE_CHANNELS,
    IMAGE_SIZE,
    fold_norms,
    load_network,
)
from deltaenergy.models.lite.text import LiteText, LiteTokenizer
from deltaenergy.models.loading.weights import fill, read_weights
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.clip import hash_weights
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.models.towers.text import unit

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
# On a CPU, more at once take no less time and more memory: 10 MB for the activations of each.
IMAGES_AT_ONCE = 4
# (x − 127)/128 on pixel values, written for values divided by 255.
PREPROCESSING = Preprocessing(resize=IMAGE_SIZE, crop=IMAGE_SIZE, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


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


class LiteModel(ConvolutionalModel):
    """EfficientNet-Lite0 and a three-layer causal text tower in one joint space."""

    def __init__(self, towers: Any, tokenizer: Any, cosines: CosineRange, logit_scale: float) -> None:
        self.name = "lite"
        # All weights in one module, to move, cast and hash them together.
        self.towers = towers.eval().requires_grad_(False)
        self.cosines = cosines
        self.preprocessing = PREPROCESSING
        self.text = CausalTextTower(
            towers.text.text_model, towers.text.text_projection, tokenizer, finish=self._finish_text
        )
        self.feature_dim = int(towers.head.look.shape[1]) + 3
        self.logit_scale = logit_scale
        described = f"relu6|{towers.text.config['hidden_act']}|{cosines.alpha}|{cosines.beta}"
        self.fingerprint = hash_weights(towers, self.preprocessing, described)
        fold_norms(towers.network)  # after the fingerprint, which is that of the weights as stored

    def to(self, device: torch.device, dtype: torch.dtype) -> LiteModel:
        """Move and cast the towers. The fingerprint stays that of the weights as stored."""
        self.towers.to(device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        return self

    def _finish_text(self, projected: torch.Tensor) -> torch.Tensor:
        return self.cosines.text(self.towers.refiner(projected))

    def feature_map(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> the 7 × 7 map of 1,280 channels."""
        pixels = pixels.to(self.dtype, memory_format=torch.channels_last)
        if torch.compiler.is_compiling():  # a graph for any number of images cannot cut them into parts
            whole: torch.Tensor = self.towers.network.feature_map(pixels)
            return whole
        parts = torch.split(pixels, IMAGES_AT_ONCE if self.device.type == "cpu" else max(1, len(pixels)))
        return torch.cat([self.towers.network.feature_map(part) for part in parts])

    def features_of(self, places: torch.Tensor) -> torch.Tensor:
        """The map at a place, or its mean -> unit features."""
        return self.cosines.image(self.towers.head(places, self.towers.network._fc))


@functools.cache
def _say_what_it_is() -> None:
    logger.warning(
        "lite is a demo model; do not benchmark with it. For real work use a CLIP model, such as "
        "openai/clip-vit-base-patch16."
    )


def load_lite(device: torch.device, dtype: torch.dtype) -> LiteModel:
    """The model from the files that are installed with the package; never touches the network.

    Warns once per process that it is a demo model.
    """
    _say_what_it_is()
    config = read_json(FOLDER / "config.json")
    # Without allocating memory or changing the user's random state.
    with torch.device("meta"):
        head = JointHead(FEATURE_CHANNELS, CLASSES, config["dimensions"], config["adapter"])
        refiner = Refiner(CLASSES, config["dimensions"])
        towers = nn.ModuleDict({"head": head, "text": LiteText(config["text_config"]), "refiner": refiner})
    fill(towers, read_weights([FOLDER / "weights.safetensors"]), FOLDER)
    towers["network"] = load_network()
    cosines = CosineRange(config["alpha"], config["beta"])
    return LiteModel(towers, LiteTokenizer(FOLDER), cosines, config["logit_scale"]).to(device, dtype)
