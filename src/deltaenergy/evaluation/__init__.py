"""How well a classifier and its scores do on a user's own pictures: accuracy, detection metrics, what was kept."""

from deltaenergy.evaluation.results import AccuracyRow, DetectionRow, EvaluatedSet, Evaluation, Group, KeptRow
from deltaenergy.evaluation.run import evaluate
from deltaenergy.evaluation.sets import ImageSet

__all__ = [
    "AccuracyRow",
    "DetectionRow",
    "EvaluatedSet",
    "Evaluation",
    "Group",
    "ImageSet",
    "KeptRow",
    "evaluate",
]
