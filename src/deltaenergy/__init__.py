"""Open-world image classification with vision-language models.

Four nouns combine freely: a Model turns images and texts into unit features, a Classifier turns image features
into similarities per class, a Score turns similarities into one number (larger = more in-distribution), and a
Detector puts a threshold on it. The public names below are imported on first use, so importing the package is fast and
imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_model": "deltaenergy.models.loading.load",
    "Model": "deltaenergy.models.base",
    "TowerModel": "deltaenergy.models.base",
    "Classifier": "deltaenergy.classifiers.base",
    "ZeroShotClassifier": "deltaenergy.classifiers.zero_shot",
    "PrecomputedClassifier": "deltaenergy.classifiers.precomputed",
    "PrecomputedModel": "deltaenergy.models.precomputed",
    "ClassNames": "deltaenergy.detector.opening",
    "score": "deltaenergy.detector.score",
    "adapt": "deltaenergy.detector.score",
    "calibrate": "deltaenergy.detector.score",
    "tune": "deltaenergy.tuning.tune",
    "tune_detector": "deltaenergy.pipeline",
    "LabelledFeatures": "deltaenergy.source",
    "list_methods": "deltaenergy.classifiers.methods",
    "Detector": "deltaenergy.detector.detector",
    "Verdict": "deltaenergy.detector.verdict",
    "Verdicts": "deltaenergy.detector.verdicts",
    "AdaptiveDetector": "deltaenergy.detector.adaptive",
    "Monitor": "deltaenergy.monitor",
    "Score": "deltaenergy.scores.base",
    "make_score": "deltaenergy.scores.registry",
    "list_scores": "deltaenergy.scores.registry",
    "image_stream": "deltaenergy.source",
    "load_images": "deltaenergy.source",
    "Store": "deltaenergy.store.store",
    "build_store": "deltaenergy.scale.build",
    "repair_store": "deltaenergy.scale.build",
    "sort": "deltaenergy.sorting",
    "undo": "deltaenergy.sorting",
    "choose": "deltaenergy.evaluation.choose",
    "compare": "deltaenergy.evaluation.compare",
    "evaluate": "deltaenergy.evaluation",
    "explain": "deltaenergy.explanation.explain",
    "write_report": "deltaenergy.report",
    "show_progress": "deltaenergy.core.progress",
    "DeltaEnergyError": "deltaenergy.errors",
}
_SUBMODULES = frozenset({"scores", "models", "classifiers", "data", "benchmarks", "report", "errors", "scale"})

__all__ = [
    "AdaptiveDetector",
    "ClassNames",
    "Classifier",
    "DeltaEnergyError",
    "Detector",
    "LabelledFeatures",
    "Model",
    "Monitor",
    "PrecomputedClassifier",
    "PrecomputedModel",
    "Score",
    "Store",
    "TowerModel",
    "Verdict",
    "Verdicts",
    "ZeroShotClassifier",
    "__version__",
    "adapt",
    "benchmarks",
    "build_store",
    "calibrate",
    "choose",
    "classifiers",
    "compare",
    "data",
    "errors",
    "evaluate",
    "explain",
    "image_stream",
    "list_methods",
    "list_scores",
    "load_images",
    "load_model",
    "make_score",
    "models",
    "repair_store",
    "report",
    "scale",
    "score",
    "scores",
    "show_progress",
    "sort",
    "tune",
    "tune_detector",
    "undo",
    "write_report",
]

if TYPE_CHECKING:
    from deltaenergy import benchmarks, classifiers, data, errors, models, report, scale, scores
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.classifiers.methods import list_methods
    from deltaenergy.classifiers.precomputed import PrecomputedClassifier
    from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
    from deltaenergy.core.progress import show_progress
    from deltaenergy.detector.adaptive import AdaptiveDetector
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.opening import ClassNames
    from deltaenergy.detector.score import adapt, calibrate, score
    from deltaenergy.detector.verdict import Verdict
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.errors import DeltaEnergyError
    from deltaenergy.evaluation import evaluate
    from deltaenergy.evaluation.choose import choose
    from deltaenergy.evaluation.compare import compare
    from deltaenergy.explanation.explain import explain
    from deltaenergy.models.base import Model, TowerModel
    from deltaenergy.models.loading.load import load_model
    from deltaenergy.models.precomputed import PrecomputedModel
    from deltaenergy.monitor import Monitor
    from deltaenergy.pipeline import tune_detector
    from deltaenergy.report import write_report
    from deltaenergy.scale.build import build_store, repair_store
    from deltaenergy.scores.base import Score
    from deltaenergy.scores.registry import list_scores, make_score
    from deltaenergy.sorting import sort, undo
    from deltaenergy.source import LabelledFeatures, image_stream, load_images
    from deltaenergy.store.store import Store
    from deltaenergy.tuning.tune import tune


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"deltaenergy.{name}")
    else:
        raise AttributeError(f"module 'deltaenergy' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
