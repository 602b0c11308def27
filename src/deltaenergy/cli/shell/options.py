"""Options that mean the same in every command. What is out of range is told before any work begins."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.errors import ArtifactError, InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# Counts beyond this are mistakes; seeds beyond theirs fit no generator.
MOST = 2**31 - 1
LARGEST_SEED = 2**63 - 1
_DEVICE = re.compile(r"(auto|cpu|cuda|mps|xpu)(:[0-9]{1,3})?")


def check_count(param: typer.CallbackParam, value: int | None) -> int | None:
    """Refuse a count that must be a mistake. A bound of typer's own would fill the help's columns with its digits."""
    return _at_most(MOST, param, value)


def check_seed(param: typer.CallbackParam, value: int | None) -> int | None:
    """Refuse a seed that fits no generator."""
    return _at_most(LARGEST_SEED, param, value)


def _at_most(largest: int, param: typer.CallbackParam, value: int | None) -> int | None:
    if value is not None and value > largest:
        raise InputError(f"{param.opts[0]} must be at most {largest:,}, got {value}.")
    return value


def _check_keep(keep: float) -> float:
    if not 0 < keep <= 1:
        raise InputError(f"--keep must be above 0 and at most 1, got {keep!r}.")
    return keep


def _check_confidence(confidence: float | None) -> float | None:
    from deltaenergy.stats.thresholds import check_confidence

    check_confidence(confidence, "--confidence")
    return confidence


def _check_fdr(fdr: float | None) -> float | None:
    from deltaenergy.stats.thresholds import check_fdr

    check_fdr(fdr, "--fdr")
    return fdr


def _check_device(device: str) -> str:
    if not _DEVICE.fullmatch(device):
        raise InputError(
            f"Unknown --device {device!r}.{did_you_mean(device, ['auto', 'cpu', 'cuda', 'cuda:1', 'mps'])}"
        )
    return device


def _check_templates(templates: list[str] | None) -> list[str] | None:
    from deltaenergy.core.classes import check_templates

    if templates:
        check_templates(None, templates)
    return templates


def complete_score(incomplete: str) -> list[str]:
    """The scores that begin so, for a shell."""
    from deltaenergy.scores.registry import list_scores

    return [name for name in list_scores() if name.startswith(incomplete)]


def complete_benchmark(incomplete: str) -> list[str]:
    """The benchmarks that begin so, for a shell."""
    from deltaenergy.benchmarks.spec import benchmark_names

    return [name for name in benchmark_names() if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """The tuning methods that begin so, for a shell."""
    from deltaenergy.classifiers.methods import list_methods

    return [name for name in list_methods() if name.startswith(incomplete)]


def complete_score_or_method(incomplete: str) -> list[str]:
    """The scores and tuning methods that begin so, for a shell."""
    return sorted({*complete_score(incomplete), *complete_method(incomplete)})


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="lite (bundled, offline), a folder, or a hub id.", show_default=True)
]
ClassesOption = Annotated[
    str | None, typer.Option("--classes", "-c", help='Class names: "dog,cat", or a text file with one per line.')
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        "-t",
        help="Prompt with {} for the name; repeat for an ensemble.",
        show_default=False,
        callback=_check_templates,
    ),
]
ScoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        "-s",
        autocompletion=complete_score,
        help='Score, optionally with parameters: "delta-energy(tau=0.1,c=1)". Repeat for several, or use all. '
        "Default: delta-energy+words.",
        show_default=False,
    ),
]
OneScoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        "-s",
        autocompletion=complete_score,
        help='One score, optionally with parameters: "delta-energy(tau=0.1,c=1)". Default: delta-energy+words.',
        show_default=False,
    ),
]
KeepOption = Annotated[
    float, typer.Option("--keep", help="Share of new known images to keep, on average.", callback=_check_keep)
]
ConfidenceOption = Annotated[
    float | None,
    typer.Option(
        "--confidence",
        help="Keep at least --keep with this confidence, such as 0.9, instead of on average. Rejects less.",
        show_default=False,
        callback=_check_confidence,
    ),
]
FdrOption = Annotated[
    float | None,
    typer.Option(
        "--fdr",
        help="Reject images so that at most this share of them is known, in expectation; for a whole folder, instead "
        "of the threshold.",
        show_default=False,
        callback=_check_fdr,
    ),
]
DetectorOption = Annotated[
    str | None, typer.Option("--detector", "-d", help="Folder written by calibrate or tune.", show_default=False)
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.", callback=_check_device)]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Where the image tower runs: torch; on a CPU openvino or onnx, on a GPU compile. Default: torch, or as "
        "the detector was calibrated.",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision", help="auto, fp32; int8 on a CPU (torch, openvino); fp16 or bf16 on a GPU (torch, compile)."
    ),
]
CalibrateOnOption = Annotated[
    str | None,
    typer.Option(
        "--calibrate-on",
        help="For int8 on OpenVINO: some hundred images of the kind that the model will see.",
        show_default=False,
    ),
]
BatchOption = Annotated[
    int, typer.Option("--batch-size", min=1, callback=check_count, help="Images per step of the image tower.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the detector that --out holds.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


def check_finite(name: str, value: float | None, *, positive: bool = False) -> None:
    """Raise `InputError` for a number that is none, or that is not above zero where it must be."""
    if value is not None and not (math.isfinite(value) and (value > 0 or not positive)):
        raise InputError(f"{name} must be a {'positive' if positive else 'finite'} number, got {value!r}.")


@dataclass(frozen=True)
class ModelPlace:
    """Where and how a model runs, as the command line says it; what does not go together is told at once."""

    device: str
    backend: str | None = None
    precision: str = "auto"
    calibrate_on: str | None = None

    def __post_init__(self) -> None:
        if (self.backend, self.precision, self.calibrate_on) != (None, "auto", None):
            from deltaenergy.models.backends import check_backend

            check_backend(self.backend or "torch", self.precision, self.calibrate_on)

    def check_detector(self, model: Model, folder: str) -> None:
        """Raise `ArtifactError` if a detector was calibrated on another backend, or in another precision."""
        backend, precision = getattr(model, "backend", "torch"), getattr(model, "precision", "fp32")
        if (self.backend or backend) != backend or self.precision not in ("auto", precision):
            raise ArtifactError(
                f"{folder} was calibrated on backend {backend} in {precision}, and its threshold holds there alone. "
                f"Leave --backend and --precision away, or calibrate a detector with them."
            )


RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run on Ray: local starts one on this machine, auto uses the one that runs here, or HOST:PORT.",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        callback=check_count,
        help="Number of Ray workers (needs --ray). Default: one per CPU or GPU.",
        show_default=False,
    ),
]
