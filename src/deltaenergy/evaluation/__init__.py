"""Measure a classifier and its scores on a user's own images: accuracy, detection metrics, shares kept."""

from deltaenergy.evaluation.compare import Comparison, Difference, compare
from deltaenergy.evaluation.results import AccuracyRow, DetectionRow, EvaluatedSet, Evaluation, Group, KeptRow
from deltaenergy.evaluation.run import evaluate
from deltaenergy.evaluation.sets import ImageSet

__all__ = [
    "AccuracyRow",
    "Comparison",
    "DetectionRow",
    "Difference",
    "EvaluatedSet",
    "Evaluation",
    "Group",
    "ImageSet",
    "KeptRow",
    "compare",
    "evaluate",
]
