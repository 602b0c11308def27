"""The protocols of benchmarks: how a method is tested, the same for every method of a run.

`standard` (default): every closed image counts, all images under the test view, and what is fitted (thresholds of
ReAct, means of multi-delta-energy, hyper-parameters) is fitted on images that are not tested.

`croft`: the rules of CRoFT's released code, which the paper's tables follow: only closed images that are classified
correctly count for detection, open images pass through the random training view, and validation images come from the
test set. It flatters every method, and is there to compare with published tables only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.models.base import require_towers
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.tuning.views import random_view

if TYPE_CHECKING:
    from deltaenergy.models.base import Model, TowerModel


@dataclass(frozen=True)
class Protocol:
    """The rules that differ between protocols.

    Attributes:
        name: what results are marked with.
        correct_only: only closed images that are classified correctly count for detection.
        open_in_train_view: open images pass through the random training view.
        validation_from_test: hyper-parameters, and scores that are fitted, see test images.
    """

    name: str
    correct_only: bool = False
    open_in_train_view: bool = False
    validation_from_test: bool = False


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("standard"),
        Protocol("croft", correct_only=True, open_in_train_view=True, validation_from_test=True),
    )
}


def get_protocol(name: str) -> Protocol:
    """The protocol called `name`."""
    if name not in PROTOCOLS:
        raise InputError(f"Unknown protocol {name!r}.{did_you_mean(name, PROTOCOLS)}")
    return PROTOCOLS[name]


class TrainView(Preprocessing):
    """CLIP tuning's random view: a crop of 8–100 % of the area and 3:4 to 4:3 in shape, resized; half are mirrored.

    The randomness comes from the picture's own bytes and `seed`, so that a picture always gets the same view,
    whatever was read before it.
    """

    def __init__(self, base: Preprocessing, seed: int = 0) -> None:
        super().__init__(**{name: getattr(base, name) for name in base.__dataclass_fields__})
        object.__setattr__(self, "seed", seed)

    if TYPE_CHECKING:
        seed: int

    def frame(self, image: Image.Image) -> Image.Image:
        """A random crop, resized to the model's side."""
        image = image.convert("RGB")
        digest = hashlib.blake2b(image.tobytes(), digest_size=8, salt=self.seed.to_bytes(8, "little")).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return random_view(image, self, rng)


def in_train_view(model: Model) -> TowerModel:
    """The same model behind the random training view, with a fingerprint of its own."""
    towers = require_towers(model, "the training view")
    return towers.derived("train-view", preprocessing=TrainView(towers.preprocessing))
