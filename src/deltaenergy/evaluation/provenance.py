"""What identifies a run: model, classes, prompts, settings, versions, date."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from typing import Any

from deltaenergy import __version__
from deltaenergy.classifiers.base import Classifier


def provenance_of(classifier: Classifier, **settings: Any) -> dict[str, Any]:
    """Everything but the date decides the numbers: equal entries and equal images give equal results."""
    return {
        "model": classifier.model.describe(),
        "classifier": {
            **classifier.describe(),
            "templates": _templates(classifier),
            "batch_dependent": classifier.batch_dependent,
        },
        "classes": list(classifier.classes),
        "classes_hash": classifier.classes_hash,
        **settings,
        "device": str(classifier.model.device),
        "precision": str(classifier.model.dtype).removeprefix("torch."),
        "versions": {
            "deltaenergy": __version__,
            "Python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _templates(classifier: Classifier) -> list[str]:
    """The prompts of a zero-shot classifier; tuned classifiers record theirs in the method."""
    return list(classifier.templates) if classifier.method.name == "zero-shot" else []
