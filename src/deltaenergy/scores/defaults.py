"""The score that a user gets unasked: what `docs/tables/default_score.py` found best on tests that chose nothing.

`delta-energy+words` is above mcm on CLIP and on `lite`, on near and far unknowns. It is not fitted, so it needs no ID
images. It needs a text tower for its words; without one, `multi-delta-energy` takes its place, which must be fitted.
Outputs name the score.
"""

from __future__ import annotations

from deltaenergy.models.base import Model

DEFAULT_SCORE = "delta-energy+words"
# For a classifier without a text tower, such as one on precomputed features.
WITHOUT_TEXTS = "multi-delta-energy"


def default_score(model: Model) -> str:
    """The default of a detector on this model."""
    return WITHOUT_TEXTS if model.text is None else DEFAULT_SCORE
