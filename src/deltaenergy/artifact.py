"""A detector on disk: `detector.json` (what it is) and `tensors.safetensors` (its numbers), checked on loading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deltaenergy import __version__
from deltaenergy.classifiers.saved import rebuild
from deltaenergy.detector import Detector
from deltaenergy.errors import ArtifactError
from deltaenergy.files import hash_strings, read_json, read_tensors, write_json, write_tensors
from deltaenergy.scores.registry import make_score

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

FORMAT = 1


def save_detector(detector: Detector, folder: str | Path) -> None:
    """Write `detector`; the JSON file comes last, so that a folder with one is whole."""
    folder = Path(folder)
    classifier, score = detector.classifier, detector.score
    tensors = {f"classifier.{name}": tensor for name, tensor in classifier.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in score.state.items()}
    tensors["calibration_scores"] = torch.from_numpy(detector.calibration_scores)
    write_tensors(folder / "tensors.safetensors", tensors)
    write_json(
        folder / "detector.json",
        {
            "format": FORMAT,
            "deltaenergy": __version__,
            "model": classifier.base_model.describe(),
            "classifier": classifier.describe(),
            "classes": list(classifier.classes),
            "classes_hash": classifier.classes_hash,
            "score": {"name": score.name, "preset": score.preset, "params": score.params},
            "threshold": detector.threshold,
            "keep": detector.keep,
            "calibration_images": len(detector.calibration_scores),
        },
    )


def load_detector(folder: str | Path, model: Model | None, device: str | torch.device) -> Detector:
    """Read a detector. The model is loaded by its recorded name unless one is given; either must match."""
    from deltaenergy.models.loading import load_model

    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder. A detector is a folder written by Detector.save or calibrate.")
    record = read_json(folder / "detector.json")
    tensors = read_tensors(folder / "tensors.safetensors")
    try:
        _check_record(record, folder)
        if model is None and record["model"].get("precomputed"):
            raise ArtifactError(
                f"{folder} was made from precomputed features: give Detector.load the PrecomputedModel they came from."
            )
        if model is None:
            model = load_model(record["model"]["name"], device=device)
        _check_model(record["model"], model, folder)
        return _rebuild(record, tensors, model)
    except KeyError as error:
        raise ArtifactError(f"{folder}: the entry {error} is missing. The detector was not written whole.") from error


def _check_record(record: Any, folder: Path) -> None:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else None
        raise ArtifactError(
            f"{folder}/detector.json has format {found!r}; deltaenergy {__version__} reads format {FORMAT}. "
            "Calibrate again, or install the version that wrote it."
        )
    if hash_strings(record["classes"]) != record["classes_hash"]:
        raise ArtifactError(
            f"{folder}/detector.json: the class list was changed after the detector was saved. "
            "Similarities belong to the old list: calibrate again with the new one."
        )


def _check_model(saved: dict[str, Any], model: Model, folder: Path) -> None:
    found = model.describe()
    if found["fingerprint"] == saved["fingerprint"]:
        return
    keys = [key for key in sorted({*saved, *found}) if saved.get(key) != found.get(key)]
    differs = "\n".join(f"  {key}: saved {saved.get(key)!r}, found {found.get(key)!r}" for key in keys)
    raise ArtifactError(
        f"{folder} was made with another model; its threshold means nothing for this one.\n{differs}\n"
        "Give the model it was made with, or calibrate again."
    )


def _rebuild(record: dict[str, Any], tensors: dict[str, torch.Tensor], model: Model) -> Detector:
    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    classifier = rebuild(record["classifier"], record["classes"], part("classifier."), model)
    saved = record["score"]
    name = f"{saved['name']}:{saved['preset']}" if saved["preset"] else saved["name"]
    score = make_score(name, **saved["params"])
    score.state.update({name: tensor.to(model.device) for name, tensor in part("score.").items()})
    detector = Detector(classifier, score)
    detector.threshold, detector.keep = record["threshold"], record["keep"]
    detector.calibration_scores = tensors["calibration_scores"].numpy()
    return detector
