"""A classifier on disk: `classifier.json` (what it is), bound to a safetensors file, both checked on loading.

Shared by classifiers and detectors: the model, the classes, the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy import __version__
from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import ArtifactError
from deltaenergy.files import check_writable, hash_strings, read_bound, read_json, write_bound
from deltaenergy.files.schema import Check, Where, anything, list_of, mapping_of, rebuilding, record, text, truth
from deltaenergy.models.base import Model

RECORD = "classifier.json"
FORMAT = "deltaenergy classifier 2"

DESCRIBED: dict[str, Check] = {
    "format": text(),
    "deltaenergy": text(),
    "model": record(
        {"name": text(), "fingerprint": text(), "precomputed": truth()}, others=True, may_lack=("precomputed",)
    ),
    "classes": list_of(text(), least=1),
    "classes_hash": text(),
    "classifier": record({"method": text(), "record": mapping_of(anything())}),
}


def save_classifier(classifier: Classifier, folder: str | Path) -> None:
    """Write `classifier`, replacing one in `folder`; an interruption leaves the old one intact."""
    check_writable(folder, folder=True)
    write_bound(folder, RECORD, {"format": FORMAT, **described(classifier)}, classifier.state_dict())


_RECORD = record(DESCRIBED)


def load_classifier(folder: str | Path, model: Model | None, device: str | torch.device) -> Classifier:
    """Read a classifier. The model is loaded by its recorded name unless passed; it must match."""
    folder = Path(folder)
    saved, tensors = read_described(folder, RECORD, FORMAT, _RECORD)
    return rebuild(saved, tensors, model_of(saved, model, device, folder), folder)


def described(classifier: Classifier) -> dict[str, Any]:
    """The entries of a record that say what a classifier is."""
    return {
        "deltaenergy": __version__,
        "model": classifier.base_model.describe(),
        "classifier": classifier.describe(),
        "classes": list(classifier.classes),
        "classes_hash": classifier.classes_hash,
    }


def read_described(
    folder: Path, name: str, expected: str, schema: Check
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A record of the format `expected` and its tensors; `ArtifactError` if it is not what `schema` says."""
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder. Pass the folder with {name} that deltaenergy wrote.")
    described_as = read_json(folder / name)
    version = described_as.get("format") if isinstance(described_as, dict) else None
    if version != expected:
        raise ArtifactError(
            f"{folder / name} has format {version!r}, which deltaenergy {__version__} does not read: make it again "
            "with `deltaenergy calibrate` or `deltaenergy tune`."
        )
    saved, tensors = read_bound(folder, name)
    schema(saved, Where(str(folder / name)))
    if hash_strings(saved["classes"]) != saved["classes_hash"]:
        raise ArtifactError(
            f"{folder / name}: the class list was changed after it was saved. Make it again with the new list."
        )
    return saved, tensors


def model_of(saved: Mapping[str, Any], model: Model | None, device: str | torch.device, folder: Path) -> Model:
    """The recorded model, or the given model if it matches."""
    from deltaenergy.models.loading.load import load_recorded

    recorded = saved["model"]
    if model is None and recorded.get("precomputed"):
        raise ArtifactError(f"{folder} was made from precomputed features: pass their PrecomputedModel to `load`.")
    if model is None:
        model = load_recorded(recorded, device)
    own = model.describe()
    if own["fingerprint"] == recorded["fingerprint"]:
        return model
    keys = [key for key in sorted({*recorded, *own}) if recorded.get(key) != own.get(key)]
    differs = "\n".join(f"  {key}: saved {recorded.get(key)!r}, found {own.get(key)!r}" for key in keys)
    raise ArtifactError(f"{folder} was made with another model.\n{differs}\nPass that model, or make it again.")


def rebuild(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], model: Model, folder: Path) -> Classifier:
    """The classifier from `described()` and `state_dict()`."""
    with rebuilding(str(folder), "the saved classifier"):
        classifier = make_method(saved["classifier"]["method"]).build_empty(model, saved["classes"]).restore(tensors)
    classifier.record = dict(saved["classifier"]["record"])
    return classifier
