"""What a feature store needs of a model: it encodes images, and says who it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt


class EncodedRows(Protocol):
    """Features with the images that they belong to: row i of `features` is `items[i]`."""

    @property
    def features(self) -> npt.NDArray[np.float32]:
        """Unit features (N, D)."""

    @property
    def patches(self) -> npt.NDArray[np.float32] | None:
        """Unit patch features (N, P, D), where asked for."""

    @property
    def items(self) -> Sequence[ImageItem]:
        """The images that could be read."""

    @property
    def unreadable(self) -> Sequence[Unreadable]:
        """Those that could not, and why."""


class Describes(Protocol):
    """Something with an identity, such as a model."""

    def describe(self) -> dict[str, Any]:
        """What identifies it; the entry `fingerprint` alone decides whether two are equal."""


@runtime_checkable
class Encoder(Describes, Protocol):
    """Something that turns images into features, such as a model."""

    feature_dim: int

    def encode(self, images: Any, *, patches: bool, batch_size: int, progress: Progress | None) -> EncodedRows:
        """Encode all images; those that cannot be read are listed apart."""


def require_encoder(model: Describes) -> Encoder:
    """`model` as something that encodes images, or an error that says it cannot."""
    if not isinstance(model, Encoder):
        raise InputError(
            f"A feature store encodes images, but {model.describe()['name']!r} holds precomputed features. "
            "Load the model itself with load_model."
        )
    return model
