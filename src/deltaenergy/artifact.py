"""A detector on disk: `detector.json` (what it is), bound to a safetensors file (its numbers), checked on loading.

Every value is checked for type, range and size, and the whole for belonging together: record and tensors by checksum,
classes by their hash, the model by its fingerprint, and the score by a trial on one made-up image.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deltaenergy.classifiers.saved import (
    DESCRIBED,
    check_classes_hash,
    described,
    model_of,
    read_described,
    rebuild,
)
from deltaenergy.detector import Detector
from deltaenergy.errors import ArtifactError
from deltaenergy.files import check_writable, write_bound
from deltaenergy.files.schema import (
    TensorSpec,
    Where,
    anything,
    check_tensors,
    mapping_of,
    number,
    optional,
    rebuilding,
    record,
    text,
    whole,
)
from deltaenergy.needs import Need
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.registry import make_score

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

RECORD = "detector.json"
FORMAT = "deltaenergy detector 2"
_RECORD = record(
    {
        **DESCRIBED,
        "score": record({"name": text(), "params": mapping_of(anything())}),
        "threshold": optional(number()),
        "keep": optional(number(above=0, high=1)),
        "calibration_images": whole(0),
    }
)


def save_detector(detector: Detector, folder: str | Path) -> None:
    """Write `detector`, in place of one that `folder` holds; an interruption leaves the old one whole."""
    check_writable(folder, folder=True)
    classifier, score = detector.classifier, detector.score
    tensors = {f"classifier.{name}": tensor for name, tensor in classifier.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in detector.score_state.items()}
    tensors["calibration_scores"] = torch.from_numpy(detector.calibration_scores)
    saved = {
        "format": FORMAT,
        **described(classifier),
        "score": {"name": score.name, "params": score.params},
        "threshold": detector.threshold,
        "keep": detector.keep,
        "calibration_images": len(detector.calibration_scores),
    }
    write_bound(folder, RECORD, saved, tensors)


def load_detector(folder: str | Path, model: Model | None, device: str | torch.device) -> Detector:
    """Read a detector. The model is loaded by its recorded name unless one is given; either must match."""
    folder = Path(folder)
    saved, tensors = read_described(folder, RECORD, FORMAT)
    _check(saved, tensors, folder)
    model = model_of(saved, model, device, folder)

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    classifier = rebuild(saved, part("classifier."), model, folder)
    with rebuilding(str(folder), "the saved score"):
        score = make_score(saved["score"]["name"], **saved["score"]["params"])
        detector = Detector(classifier, score, state=part("score."))
        if saved["threshold"] is not None:
            _try(detector)
    detector.threshold, detector.keep = saved["threshold"], saved["keep"]
    detector.calibration_scores = tensors["calibration_scores"].numpy()
    return detector


def _check(saved: dict[str, Any], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Check every value, and what they say about each other."""
    where = Where(str(folder / RECORD))
    _RECORD(saved, where)
    check_classes_hash(saved, folder / RECORD)
    count = saved["calibration_images"]
    scores = TensorSpec((count,), ("float64",), ascending=True)
    check_tensors(tensors, {"calibration_scores": scores}, str(folder), prefixes=("classifier.", "score."))
    if count and saved["threshold"] is None:
        raise where.at("threshold").wrong(None, f"a number, since there are {count} calibration images")
    if saved["keep"] is not None and not count:
        raise where.at("calibration_images").wrong(count, f"at least 1, since keep is {saved['keep']:g}")


def _try(detector: Detector) -> None:
    """Score one made-up image, so that learned tensors that do not fit are found now, not with the first image."""
    classifier, score = detector.classifier, detector.score
    if score.needs & {Need.ID_DATA, Need.TEXTS} and not detector.score_state:
        raise ArtifactError(f"What {score.spec!r} learned before it was saved is missing. Calibrate again.")
    if score.needs_images or classifier.needs - {Need.FEATURES}:
        return  # a made-up image would have to go through the towers
    feature = torch.zeros(1, classifier.model.feature_dim, device=classifier.model.device)
    feature[0, 0] = 1
    similarities = torch.linspace(0, 0.3, len(classifier.classes), device=feature.device)[None]
    with torch.inference_mode():
        value = detector.scorer(ScoreInputs(similarities, feature))
    if value.shape != (1,) or not torch.isfinite(value).all():
        raise ArtifactError(f"{score.spec!r} gives no number with what was saved: its learned tensors do not fit.")
