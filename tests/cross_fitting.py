"""Scores that learn from known images, cross-fitted on them and measured on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltaenergy.classifiers.base import Classifier
from deltaenergy.scores.base import Score, Scorer
from deltaenergy.scoring import AnyScorer, Encoded, Scored, bind, cross_fit, known_images, score_all
from deltaenergy.source import as_source


def cross_fitted(
    classifier: Classifier,
    scores: Sequence[Score | Scorer],
    images: Any,
    *,
    every: int = 1,
    **options: Any,
) -> tuple[Scored, dict[str, AnyScorer]]:
    """What is found for the images, and the scorers by spec."""
    scorers = bind(classifier, scores)
    encoded = Encoded(classifier, scorers, as_source(images), hold=True, **options)
    fitted = cross_fit(scorers, known_images([encoded], scorers, every=[every]))
    return score_all(encoded, fitted, known=True), {scorer.spec: scorer for scorer in fitted}
