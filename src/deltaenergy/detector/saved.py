"""A detector on disk: `detector.json` (what it is), bound to a safetensors file (its numbers), checked on loading.

Every value is checked for type, range and size, and that the parts match: record and tensors by checksum, classes by
hash, the model by fingerprint, and the score by a trial on a made-up image.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.classifiers.saved import (
    DESCRIBED,
    described,
    model_of,
    read_described,
    rebuild,
)
from deltaenergy.core.needs import Need
from deltaenergy.data.corruptions import CORRUPTIONS
from deltaenergy.detector.calibration import Calibration
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.guarantee import Guarantee
from deltaenergy.detector.names import MEASURED, NamesRule
from deltaenergy.detector.reference_images import CHECK as KEPT_CHECK
from deltaenergy.detector.reference_images import restore as restore_kept_images
from deltaenergy.detector.reference_images import specs as kept_specs
from deltaenergy.errors import ArtifactError
from deltaenergy.files import check_writable, write_bound
from deltaenergy.files.schema import (
    TensorSpec,
    Where,
    anything,
    check_tensors,
    list_of,
    mapping_of,
    number,
    optional,
    rebuilding,
    record,
    text,
    truth,
    whole,
)
from deltaenergy.scores.base import FoldScorer, ScoreInputs
from deltaenergy.scores.registry import make_score

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

RECORD = "detector.json"
# The prefix of detectors on the Hugging Face Hub.
HUB = "hf:"
FORMAT = "deltaenergy detector 4"
_OPEN_SHARE = number(above=0, high=1 - 2**-53)
_RECORD = record(
    {
        **DESCRIBED,
        "score": record({"name": text(), "params": mapping_of(anything())}),
        "calibration": optional(
            record(
                {
                    "keep": number(above=0, high=1),
                    "confidence": optional(_OPEN_SHARE),
                    "images": whole(1),
                    "folds": whole(0),
                    "trained": truth(),
                    "own": list_of(text()),
                    "pooled": list_of(text()),
                    "tolerate": list_of(text(among=CORRUPTIONS)),
                    "threshold": optional(number()),
                    "slack": number(low=0),
                    "guarantee": text(),
                }
            )
        ),
        "names": record(
            {
                "threshold": number(),
                "classes": whole(1),
                "words": whole(1),
                "measured_on": optional(text(among=MEASURED)),
                "text": text(),
            }
        ),
        "kept_images": KEPT_CHECK,
    },
    may_lack=("names", "kept_images"),
)


def save_detector(detector: Detector, folder: str | Path) -> None:
    """Write `detector`, replacing one in `folder`; an interruption leaves the old one intact."""
    check_writable(folder, folder=True)
    classifier, score = detector.classifier, detector.score
    tensors = {f"classifier.{name}": tensor for name, tensor in classifier.state_dict().items()}
    tensors |= {f"score.{name}": tensor for name, tensor in detector.score_state.items()}
    saved = {
        "format": FORMAT,
        **described(classifier),
        "score": {"name": score.name, "params": score.params},
        "calibration": None,
    }
    if isinstance(detector.calibration, NamesRule):
        saved["names"] = detector.calibration.to_dict()
    elif detector.calibration is not None:
        known, guarantee = detector.calibration, detector.calibration.guarantee
        saved["calibration"] = {
            **{
                name: list(value) if isinstance(value, tuple) else value
                for name, value in dataclasses.asdict(guarantee).items()
            },
            # Only for readers of the file: both follow from the rest.
            "threshold": known.threshold,
            "guarantee": str(guarantee),
            "slack": known.slack,
        }
        tensors["calibration_scores"] = torch.from_numpy(known.scores)
        if known.folds is not None:
            tensors["calibration_folds"] = torch.from_numpy(known.folds)
        if known.groups is not None:
            tensors["calibration_classes"] = torch.from_numpy(known.groups)
    if detector.kept_images is not None:
        saved["kept_images"] = detector.kept_images.record()
        tensors |= detector.kept_images.tensors()
    write_bound(folder, RECORD, saved, tensors)


def load_detector(folder: str | Path, model: Model | None, device: str | torch.device) -> Detector:
    """Read a detector. The model is loaded by its recorded name unless passed; it must match."""
    if isinstance(folder, str) and folder.startswith(HUB):
        from deltaenergy.detector.hub import fetch_detector

        folder = fetch_detector(folder.removeprefix(HUB))
    folder = Path(folder)
    saved, tensors = read_described(folder, RECORD, FORMAT, _RECORD)
    _check(saved, tensors, folder)
    model = model_of(saved, model, device, folder)

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    classifier = rebuild(saved, part("classifier."), model, folder)
    with rebuilding(str(folder), "the saved score"):
        score = make_score(saved["score"]["name"], **saved["score"]["params"])
        calibration: Calibration | NamesRule | None = None
        state = part("score.")
        if saved["calibration"] is not None or "names" in saved:
            detector = Detector(classifier, score, state=state)
            _try(detector)
        if "names" in saved:
            calibration = NamesRule(**{name: value for name, value in saved["names"].items() if name != "text"})
        if saved["calibration"] is not None:
            folds = len(detector.scorer.scorers) if isinstance(detector.scorer, FoldScorer) else 0
            if folds != saved["calibration"]["folds"]:
                raise ArtifactError(f"What {score.spec!r} learned has {folds} folds, unlike the calibration.")
            calibration = _calibration(saved["calibration"], tensors)
    kept = None
    if "kept_images" in saved:
        kept = restore_kept_images(saved["kept_images"], tensors, classifier.model.feature_dim, str(folder))
    return Detector(classifier, score, state=state, calibration=calibration, kept_images=kept)


def version_of(detector: Detector) -> str:
    """A short hash of all that decides a verdict."""
    digest = hashlib.blake2b(digest_size=8)
    classifier = detector.classifier
    for part in (classifier.model.fingerprint, classifier.method.spec, detector.score.spec, repr(detector.guarantee)):
        digest.update(part.encode() + b"\0")
    for name in classifier.classes:
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
    for tensors in (classifier.state_dict(), detector.score_state):
        for key in sorted(tensors):
            tensor = tensors[key].detach().cpu().contiguous()
            digest.update(key.encode() + tensor.numpy().tobytes())
    digest.update(detector.calibration_scores.tobytes())
    return digest.hexdigest()


def _calibration(saved: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Calibration:
    """The saved one."""
    values = {field.name: saved[field.name] for field in dataclasses.fields(Guarantee)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    guarantee = Guarantee(**{**values, **lists})
    arrays = [tensors.get(f"calibration_{name}") for name in ("folds", "classes")]
    folds, groups = (None if array is None else array.numpy() for array in arrays)
    return Calibration(tensors["calibration_scores"].numpy(), guarantee, saved["slack"], folds, groups)


def _check(saved: dict[str, Any], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Check every value, and that they agree."""
    where = Where(str(folder / RECORD))
    wanted: dict[str, TensorSpec] = {}
    known = saved["calibration"]
    if known is not None:
        count, classes = known["images"], saved["classes"]
        wanted["calibration_scores"] = TensorSpec((count,), ("float64",), ascending=True)
        if known["folds"]:
            wanted["calibration_folds"] = TensorSpec((count,), ("int64",), low=0, high=known["folds"] - 1)
        if known["own"] or known["pooled"]:
            wanted["calibration_classes"] = TensorSpec((count,), ("int64",), low=-1, high=len(classes) - 1)
        if "kept_images" in saved:
            wanted |= kept_specs(count, len(classes))
        if "names" in saved:
            raise where.at("names").wrong(saved["names"], "no entry, since the threshold was set on images")
    elif "kept_images" in saved:
        raise where.at("calibration").wrong(None, "an entry, since there are kept images")
    check_tensors(tensors, wanted, str(folder), prefixes=("classifier.", "score."))
    if "calibration_classes" in wanted:
        own = [saved["classes"][k] for k in np.unique(tensors["calibration_classes"].numpy()).tolist() if k >= 0]
        if own != known["own"]:
            raise where.at("calibration").at("own").wrong(known["own"], f"{own}, as in calibration_classes")


def _try(detector: Detector) -> None:
    """Score one made-up image, to find learned tensors that do not fit before the first image."""
    classifier, score = detector.classifier, detector.score
    if score.needs & {Need.ID_DATA, Need.TEXTS} and not detector.score_state:
        raise ArtifactError(f"What {score.spec!r} learned before it was saved is missing. Calibrate again.")
    if score.needs_images or classifier.needs_to_predict - {Need.FEATURES}:
        return  # a made-up image would have to be encoded
    feature = torch.zeros(1, classifier.model.feature_dim, device=classifier.model.device)
    feature[0, 0] = 1
    similarities = torch.linspace(0, 0.3, len(classifier.classes), device=feature.device)[None]
    with torch.inference_mode():
        value = detector.scorer(ScoreInputs(similarities, feature))
    if value.shape != (1,) or not torch.isfinite(value).all():
        raise ArtifactError(f"{score.spec!r} gives no number with what was saved: its saved tensors do not fit.")
