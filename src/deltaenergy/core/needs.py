"""What a classifier or a score needs of an image."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Need(StrEnum):
    """One thing that is needed. Classifiers and scores declare a set of them."""

    FEATURES = "features"  # unit image features
    PATCHES = "patches"  # unit patch features: images must be encoded again, features do not have them
    STATES = "patch states"  # patches before the projection that makes patch features of them
    PIXELS = "pixels"  # the image itself: for gradients, or for an image tower with learned tokens
    DOMAINS = "domains"  # the style or source that each training image comes from
    ID_DATA = "ID data"  # fitted when the detector is calibrated
    LABELS = "labels"  # the classes of the ID data that it is fitted on
    TEXTS = "texts"  # encodes further texts (negative labels, "no" prompts) with the model
    PAIRS = "texts of each image"  # runs the text tower whenever it scores, for texts that depend on the image


# Not in features: these need images.
OF_IMAGES = frozenset({Need.PATCHES, Need.STATES, Need.PIXELS})


class Lack(NamedTuple):
    """Why a need cannot be met, and the remedy, as a sentence after a colon."""

    why: str
    remedy: str
