"""How a method is tested: rules that are the same for every method of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Protocol:
    """The rules that differ between protocols.

    Attributes:
        name: what results are marked with.
        correct_only: only closed images that are classified correctly count for detection.
        open_in_train_view: open images pass through the random training view.
        validation_from_test: hyper-parameters, and scores that are fitted, see test images.
        by_name: classes of one name count as one, as images that are sorted by name cannot tell them apart.
    """

    name: str
    correct_only: bool = False
    open_in_train_view: bool = False
    validation_from_test: bool = False
    by_name: bool = False

    def counted(self, correct: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which closed images count for detection, given which were classified correctly."""
        return correct if self.correct_only else np.broadcast_to(np.True_, correct.shape)


# A user's own images: every image counts, and folders tell classes by their names.
OWN_IMAGES = Protocol("own images", by_name=True)
