"""Classifiers turn image features into similarities per class: zero-shot from names, or tuned on a few images.

Below are classifiers without tuning, and the building blocks of tuning methods.
"""

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.methods import Method, Term, TrainViews, list_methods, make_method, register_method
from deltaenergy.classifiers.precomputed import PrecomputedClassifier
from deltaenergy.classifiers.zero_shot import TemplateClassifier, TemplateMethod, ZeroShotClassifier
from deltaenergy.core.needs import Need

__all__ = [
    "Classifier",
    "Inputs",
    "Method",
    "Need",
    "Outputs",
    "PrecomputedClassifier",
    "TemplateClassifier",
    "TemplateMethod",
    "Term",
    "TrainBatch",
    "TrainViews",
    "ZeroShotClassifier",
    "list_methods",
    "make_method",
    "register_method",
]
