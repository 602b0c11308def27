"""A detector on disk: `detector.json` (what it is), bound to a safetensors file (its numbers), checked on loading.

Every value is checked for type, range and size, and the whole for belonging together: record and tensors by checksum,
classes by their hash, the model by its fingerprint, and the score by a trial on one made-up image.
"""

from __future__ import annotations

import hashlib
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
from deltaenergy.kept_images import CHECK as KEPT_CHECK
from deltaenergy.kept_images import restore as restore_kept_images
from deltaenergy.kept_images import specs as kept_specs
from deltaenergy.labels import first_of_name
from deltaenergy.needs import Need
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.registry import make_score
from deltaenergy.thresholds import ClassThresholds, Guarantee, slack_of

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

RECORD = "detector.json"
# What a detector's place begins with if it is on the Hugging Face hub.
HUB = "hf:"
FORMAT = "deltaenergy detector 2"
_OPEN_SHARE = number(above=0, high=1 - 2**-53)
_RECORD = record(
    {
        **DESCRIBED,
        "score": record({"name": text(), "params": mapping_of(anything())}),
        "threshold": optional(number()),
        "keep": optional(number(above=0, high=1)),
        "calibration_images": whole(0),
        "slack": number(low=0),
        "guarantee": optional(
            record(
                {
                    "keep": number(above=0, high=1),
                    "confidence": optional(_OPEN_SHARE),
                    "wanted": optional(_OPEN_SHARE),
                    "images": whole(1),
                    "fitted_on": whole(0),
                    "seen": truth(),
                    "own": list_of(text()),
                    "pooled": list_of(text()),
                    "text": text(),
                }
            )
        ),
        "class_thresholds": optional(mapping_of(number())),
        "kept_images": KEPT_CHECK,
    },
    # Detectors of before there were guarantees; and most keep no images.
    may_lack=("slack", "guarantee", "class_thresholds", "kept_images"),
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
        "slack": detector.slack,
        "guarantee": None if detector.guarantee is None else detector.guarantee.to_dict(),
        "class_thresholds": None if detector.by_class is None else detector.class_thresholds,
    }
    if detector.by_class is not None:
        tensors["calibration_classes"] = torch.from_numpy(detector.by_class.groups)
    if detector.kept_images is not None:
        saved["kept_images"] = detector.kept_images.record()
        tensors |= detector.kept_images.tensors()
    write_bound(folder, RECORD, saved, tensors)


def load_detector(folder: str | Path, model: Model | None, device: str | torch.device) -> Detector:
    """Read a detector. The model is loaded by its recorded name unless one is given; either must match."""
    if isinstance(folder, str) and folder.startswith(HUB):
        from deltaenergy.hub_detectors import fetch_detector

        folder = fetch_detector(folder.removeprefix(HUB))
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
    detector.slack = saved.get("slack", slack_of(detector.calibration_scores))
    detector.guarantee = _guarantee(saved, detector)
    if saved.get("class_thresholds") is not None:
        positions = {name: k for k, name in reversed(list(enumerate(saved["classes"])))}
        own = {positions[name]: bound for name, bound in saved["class_thresholds"].items()}
        detector.by_class = ClassThresholds(tensors["calibration_classes"].numpy(), own)
    if "kept_images" in saved:
        dimension = classifier.model.feature_dim
        detector.kept_images = restore_kept_images(saved["kept_images"], tensors, dimension, str(folder))
    return detector


def version_of(detector: Detector) -> str:
    """A short hash of all that decides a verdict."""
    digest = hashlib.blake2b(digest_size=8)
    classifier = detector.classifier
    for part in (classifier.model.fingerprint, classifier.method.spec, detector.score.spec, repr(detector.threshold)):
        digest.update(part.encode() + b"\0")
    for name in classifier.classes:
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
    for tensors in (classifier.state_dict(), detector.score_state):
        for key in sorted(tensors):
            tensor = tensors[key].detach().cpu().contiguous()
            digest.update(key.encode() + tensor.numpy().tobytes())
    digest.update(detector.calibration_scores.tobytes())
    return digest.hexdigest()


def _guarantee(saved: dict[str, Any], detector: Detector) -> Guarantee | None:
    """The saved one; that of detectors from before there were any is the in-sample rule."""
    found = saved.get("guarantee")
    if found is not None:
        fields = {name: value for name, value in found.items() if name != "text"}
        return Guarantee(**{**fields, "own": tuple(found["own"]), "pooled": tuple(found["pooled"])})
    count = saved["calibration_images"]
    if saved["keep"] is None or not count:
        return None
    return Guarantee(saved["keep"], None, count, seen=detector.score.needs_fit)


def _check(saved: dict[str, Any], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Check every value, and what they say about each other."""
    where = Where(str(folder / RECORD))
    _RECORD(saved, where)
    check_classes_hash(saved, folder / RECORD)
    count = saved["calibration_images"]
    scores = TensorSpec((count,), ("float64",), ascending=True)
    wanted = {"calibration_scores": scores}
    own = saved.get("class_thresholds")
    if own is not None:
        wanted["calibration_classes"] = TensorSpec((count,), ("int64",), low=-1, high=len(saved["classes"]) - 1)
        _check_own(own, saved["classes"], where.at("class_thresholds"))
    if "kept_images" in saved:
        wanted |= kept_specs(count, len(saved["classes"]))
    check_tensors(tensors, wanted, str(folder), prefixes=("classifier.", "score."))
    if count and saved["threshold"] is None:
        raise where.at("threshold").wrong(None, f"a number, since there are {count} calibration images")
    if saved["keep"] is not None and not count:
        raise where.at("calibration_images").wrong(count, f"at least 1, since keep is {saved['keep']:g}")


def _check_own(own: dict[str, float], classes: list[str], where: Where) -> None:
    """Thresholds of single classes must name classes; of those that stand twice, the first."""
    named = {classes[k] for k in first_of_name(classes)}
    for name in own:
        if name not in named:
            raise where.wrong(name, "the names of classes")


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
