"""Detectors on the Hugging Face Hub: a repository has the folder that `Detector.save` writes, and a model card.

    detector.push_to_hub("me/pets", evaluation=result)
    Detector.load("hf:me/pets")                              # or hf:me/pets@REVISION; --detector hf:me/pets

Only JSON and safetensors files are downloaded. The model is not part of the repository, and a name in a file does not
download it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy import __version__
from deltaenergy.detector.saved import HUB, RECORD, save_detector
from deltaenergy.errors import InputError, ModelUnavailableError, first_line
from deltaenergy.files import write_text
from deltaenergy.models.loading.hub import is_repository

if TYPE_CHECKING:
    from deltaenergy.detector.detector import Detector
    from deltaenergy.evaluation import Evaluation
    from deltaenergy.stats.metrics import Estimate

CARD = "README.md"
_PATTERNS = [RECORD, f"{Path(RECORD).stem}-*.safetensors"]
# Longer lists of classes are cut in the card; the detector has them all.
_CLASSES_SHOWN = 200


def fetch_detector(name: str) -> Path:
    """The local folder of `owner/name` or `owner/name@revision`, downloaded if it is not in the cache."""
    from huggingface_hub import snapshot_download

    repo, _, revision = name.partition("@")
    _check_repo(repo)
    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=_PATTERNS))
    except Exception as error:  # many types: no network, no such repository or revision, no permission to read it
        raise ModelUnavailableError(
            f"The detector {HUB}{name} could not be downloaded from the Hugging Face Hub: {first_line(error)}\nCheck "
            f"the name and your permissions, or download it elsewhere with `hf download {repo}`, and pass the folder."
        ) from error


def push_detector(
    detector: Detector,
    repo: str,
    *,
    evaluation: Evaluation | None = None,
    private: bool = False,
    with_images: bool = False,
    message: str | None = None,
) -> str:
    """Upload a detector to the Hub, with a model card; returns the URL of the commit.

    Args:
        detector: calibrated.
        repo: owner/name; created if it does not exist.
        evaluation: result of `evaluate`, for the card.
        private: whether a new repository is private.
        with_images: allow to upload thumbnails of calibration images, if the detector stores them.
        message: of the commit.
    """
    from huggingface_hub import HfApi

    _check_repo(repo)
    detector.require_threshold()
    if detector.kept_images is not None and not with_images:
        raise InputError(
            "This detector contains thumbnails of its calibration images, visible to everyone who can read the "
            "repository. Pass with_images=True to publish them, or calibrate without keep_images."
        )
    with tempfile.TemporaryDirectory(prefix="deltaenergy-") as temporary:
        folder = Path(temporary) / "detector"
        save_detector(detector, folder)
        write_text(folder / CARD, model_card(detector, repo, evaluation))
        api = HfApi()
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=str(folder),
                commit_message=message or f"Detector by deltaenergy {__version__}",
                allow_patterns=[*_PATTERNS, CARD],
                # Tensors of the previous detector, which no record names any more.
                delete_patterns=[_PATTERNS[1]],
            )
        except Exception as error:  # many types: no network, not signed in, no permission to write
            raise ModelUnavailableError(
                f"The detector could not be uploaded to {repo!r}: {first_line(error)}\nSign in with `hf auth login`, "
                "and check your write permission for that repository."
            ) from error
    return str(getattr(commit, "commit_url", commit))


def model_card(detector: Detector, repo: str, evaluation: Evaluation | None = None) -> str:
    """The README.md of a repository: description, classes, calibration, results, limits, usage."""
    classifier, score = detector.classifier, detector.score
    classes = list(dict.fromkeys(classifier.classes))
    shown = ", ".join(_plain(name) for name in classes[:_CLASSES_SHOWN])
    more = f" and {len(classes) - _CLASSES_SHOWN:,} more" if len(classes) > _CLASSES_SHOWN else ""
    base = classifier.base_model.name
    known = len(detector.calibration_scores)
    made = f"set on {known:,} images" if known else "set from class names"
    threshold = "none, cross-fitted" if detector.threshold is None else f"{detector.threshold:.6g}"
    lines = [
        "---",
        "library_name: deltaenergy",
        "pipeline_tag: image-classification",
        "tags:",
        "- out-of-distribution-detection",
        "- open-set-recognition",
        "---",
        "",
        f"# {repo.split('/')[-1]}",
        "",
        f"Classifies images into {len(classes):,} classes, and rejects those that belong to none of them.",
        "",
        "```python",
        "import deltaenergy as de",
        "",
        f'detector = de.Detector.load("{HUB}{repo}")',
        'for verdict in detector.predict("photos/"):',
        "    print(verdict.path, verdict.label, verdict.is_ood)",
        "```",
        "",
        "## What it is",
        "",
        "| | |",
        "|---|---|",
        f"| model | {_plain(base)} (`{classifier.base_model.fingerprint}`), not part of this repository |",
        f"| classifier | `{classifier.method.spec}` |",
        f"| score | `{score.spec}`: {_plain(score.formula)} ({_plain(score.paper)}) |",
        f"| threshold | {threshold}, {made} |",
        f"| made with | deltaenergy {__version__} |",
        "",
        f"**Classes.** {shown}{more}.",
        "",
        "## Calibration",
        "",
        str(detector.guarantee),
        "",
        "## Measured",
        "",
        *_figures(evaluation),
        "",
        "## Limits",
        "",
        "- The threshold holds for images like those it was set on. Recalibrate on your own images: "
        "`deltaenergy.calibrate('good/', detector)`.",
        "- How many unknown images are found depends on the unknowns; only those above were measured.",
        "- Images crafted to be kept may be kept.",
        *(["- It contains thumbnails of its calibration images."] if detector.kept_images is not None else []),
        "",
    ]
    return "\n".join(lines)


def _figures(evaluation: Evaluation | None) -> list[str]:
    if evaluation is None or not (evaluation.accuracy or evaluation.detection):
        return ["Not measured: pass `push_to_hub(…, evaluation=de.evaluate(…))`."]
    lines = ["| metric | on | value | 95% interval |", "|---|---|---:|---:|"]
    lines += [_row("accuracy", row.set, row.accuracy) for row in evaluation.accuracy]
    for found in evaluation.detection:
        where = f"{found.closed} against {found.open}"
        lines += [_row(f"{name} of {found.score}", where, value) for name, value in found.metrics.items()]
    return lines


def _row(what: str, where: str, value: Estimate) -> str:
    interval = f"{100 * value.low:.1f} to {100 * value.high:.1f}"
    return f"| {_plain(what)} | {_plain(where)} | {100 * value.value:.1f}% | {interval} |"


def _plain(text: str) -> str:
    """Names come from anywhere: in a card they are plain text without markup or line breaks."""
    kept = " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!" else letter for letter in kept)


def _check_repo(repo: str) -> None:
    if not is_repository(repo):
        raise InputError(f"{repo!r} is not a repository of the Hugging Face Hub: write owner/name.")
