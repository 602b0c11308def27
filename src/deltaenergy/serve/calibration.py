"""A detector calibrated on images that came with a request, as a zip of the folder that `Detector.load` takes."""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import InputError
from deltaenergy.scores.registry import make_score
from deltaenergy.serve.bodies import Form
from deltaenergy.serve.targets import guarantee_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltaenergy.serve.engine import Engine

MOST_NAMES = 1000


def calibrated_zip(engine: Engine, classes: Sequence[str], form: Form) -> tuple[bytes, str]:
    """The zip, and JSON about the threshold: what a user should hear is part of it."""
    target = engine.class_list(classes, form.one("template") or None, None)
    score = make_score(form.one("score") or engine.default_score)
    if score.missing is not None or score.own_to is not None or Need.TEXTS in score.needs:
        raise InputError(f"The score {score.spec!r} cannot be calibrated here: it encodes many further texts first.")
    items = [ImageItem(f"{number}: {name}", data) for number, (name, data) in enumerate(form.files)]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        detector = Detector(target.classifier, score).calibrate(items, _keep(form), batch_size=engine.limits.batch)
    with tempfile.TemporaryDirectory() as folder:
        detector.save(folder)
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).iterdir()):
                archive.write(path, f"detector/{path.name}")
    told = {
        "threshold": detector.threshold,
        "images": len(detector.calibration_scores),
        "score": detector.score.spec,
        "guarantee": guarantee_of(detector),
        "warnings": [str(one.message) for one in heard if issubclass(one.category, UserWarning)],
    }
    return data.getvalue(), json.dumps(told)


def _keep(form: Form) -> float:
    text = form.one("keep") or "0.95"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"keep must be above 0 and at most 1, got {text[:40]!r}.") from None
