"""A classifier on disk: what it is as JSON, its tensors beside it, both checked on loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy import __version__
from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import hash_strings, read_json, read_tensors, write_json, write_tensors
from deltaenergy.models.base import Model

FORMAT = 1
RECORD, TENSORS = "classifier.json", "classifier.safetensors"


def save_classifier(classifier: Classifier, folder: str | Path) -> None:
    """Write `classifier`; the JSON file comes last, so that a folder with one is whole."""
    folder = Path(folder)
    write_tensors(folder / TENSORS, classifier.state_dict())
    record = {
        "format": FORMAT,
        "deltaenergy": __version__,
        "model": classifier.base_model.describe(),
        "classes": list(classifier.classes),
        "classes_hash": classifier.classes_hash,
        "classifier": classifier.describe(),
    }
    write_json(folder / RECORD, record)


def load_classifier(folder: str | Path, model: Model | None, device: str | torch.device) -> Classifier:
    """Read a classifier. The model is loaded by its recorded name unless one is given; either must match."""
    from deltaenergy.models.loading import load_model

    folder = Path(folder)
    record = read_json(folder / RECORD)
    if hash_strings(record["classes"]) != record["classes_hash"]:
        raise ArtifactError(f"{folder / RECORD}: the class list was changed after the classifier was saved.")
    if model is None:
        model = load_model(record["model"]["name"], device=device)
    if model.fingerprint != record["model"]["fingerprint"]:
        raise ArtifactError(f"{folder} was made with another model than {model.name!r}.")
    return rebuild(record["classifier"], record["classes"], read_tensors(folder / TENSORS), model)


def rebuild(
    described: Mapping[str, Any], classes: list[str], tensors: Mapping[str, torch.Tensor], model: Model
) -> Classifier:
    """The classifier that `describe()` and `state_dict()` stand for."""
    try:
        classifier = make_method(described["method"]).blank(model, classes).restore(tensors)
    except InputError as error:
        raise ArtifactError(f"The saved classifier cannot be built: {error}") from error
    classifier.record = dict(described["record"])
    return classifier
