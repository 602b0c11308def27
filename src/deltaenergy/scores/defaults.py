"""The score that a user gets unasked: what `docs/tables/default_score.py` found best on tests that chose nothing.

`delta-energy+words` is above mcm on CLIP and on `lite`, on near and far unknowns, and most clearly where known classes
come in new styles. It learns two means and two deviations from ID images and asks 1,000 words, so that it needs both;
where one of them is missing, the best score that can do without takes its place, and outputs name it.
"""

from __future__ import annotations

from deltaenergy.models.base import Model

DEFAULT_SCORE = "delta-energy+words"
# For a classifier without a text tower, such as one on precomputed features.
WITHOUT_TEXTS = "multi-delta-energy"
# Where there are no ID images to learn from: no score is fitted.
WITHOUT_ID_IMAGES = "delta-energy(tau=0.1,c=1)"


def default_score(model: Model) -> str:
    """The default of a detector on this model, which will be calibrated on ID images."""
    return WITHOUT_TEXTS if model.text is None else DEFAULT_SCORE
