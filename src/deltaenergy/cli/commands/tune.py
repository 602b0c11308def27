"""`deltaenergy tune`: learn from a few labelled images per class, and save the result as a detector."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import check_seed, complete_method
from deltaenergy.cli.shell.results import print_guarantee
from deltaenergy.core.text import visible
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.evaluation.tuning_gain import TuningGain
    from deltaenergy.pipeline import TunedDetector
    from deltaenergy.stats.metrics import Estimate
    from deltaenergy.training.loop import EpochLog

# As in deltaenergy.tuning.tune, which is slow to import.
DEFAULT_METHOD = "lp++"


def tune(
    train: Annotated[
        Path, typer.Option("--train", help="Folder with one subfolder of images per class, or a feature store.")
    ],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tuned detector.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            autocompletion=complete_method,
            help='Tuning method, such as "ebm(p=0.5)" or cocoop+ebm; repeat it, or auto, to try several and keep the '
            f"best. Default: {DEFAULT_METHOD}.",
            show_default=False,
        ),
    ] = None,
    val: Annotated[
        Path | None, typer.Option("--val", help="Validation images, as --train: keep the best epoch on them.")
    ] = None,
    shots: Annotated[int, typer.Option("--shots", min=1, help="Training images per class.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, callback=check_seed, help="Of images, views and order.")] = 1,
    classes: common.ClassesOption = None,
    domains: Annotated[bool, typer.Option("--domains", help="Folders are DOMAIN/CLASS/ rather than CLASS/.")] = False,
    search: Annotated[bool, typer.Option("--search", help="Try the method's grid and keep the best on --val.")] = False,
    views: Annotated[str, typer.Option("--views", help="Random views per image, encoded once; live, or test.")] = "8",
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Training epochs. Default: the method's, mostly 30.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Learning rate. Default: the method's, mostly 0.002.")
    ] = None,
    train_batch: Annotated[
        int | None,
        typer.Option("--train-batch", min=1, help="Images per training step. Default: the method's, mostly 32."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--id", help="Known images for the threshold. Default: --val, or unused images."),
    ] = None,
    score: common.OneScoreOption = None,
    keep: common.KeepOption = 0.95,
    confidence: common.ConfidenceOption = None,
    model: common.ModelOption = "lite",
    batch_size: common.BatchOption = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
) -> None:
    """Tune a classifier on a few images per class; the result is a detector that score and evaluate take.

    What it does is shown beside zero-shot, on --val, or training images that were not drawn, or by cross-validation.
    An interrupted run goes on where it stopped when the same command is given again.
    """
    from deltaenergy.core.classes import read_classes
    from deltaenergy.pipeline import tune_detector
    from deltaenergy.stats.thresholds import NoGuarantee

    place = common.ModelPlace(device, backend, precision, calibrate_on)
    scores = common.make_scores(score) if score else None
    if scores is not None and len(scores) != 1:
        raise InputError("A detector has one score: give --score once.")
    methods = _methods(method)
    changes = {"epochs": epochs, "lr": lr, "batch_size": train_batch}
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoGuarantee)  # said at the end
        tuned = tune_detector(
            lambda: common.load_model_with_status(model, place),
            train,
            out_folder,
            methods,
            classes=read_classes(classes) if classes else None,
            shots=shots,
            seed=seed,
            val=val,
            id_images=calibrate,
            score=scores[0] if scores else None,
            keep=keep,
            confidence=confidence,
            domains=domains,
            views=_views(views),
            search=search,
            recipe={name: value for name, value in changes.items() if value is not None},
            overwrite=overwrite,
            batch_size=batch_size,
            # The epochs of several methods would bury the table that follows.
            on_epoch=_print_epoch if isinstance(methods, str) and methods != "auto" else None,
            on_candidate=lambda spec, accuracy: err.print(f"{spec}: validation accuracy {accuracy:.1%}", markup=False),
            announce=common.progress_bar,
        )
    detector = tuned.detector
    if json_output:
        common.print_json(_summary(out_folder, tuned))
    else:
        if tuned.comparison is not None:
            _print_comparison(tuned.comparison)
        seconds = time.perf_counter() - began
        err.print(
            f"{detector.classifier.method.spec} tuned on {tuned.training_images} images of "
            f"{len(detector.classifier.classes)} classes in {seconds:.0f} s. "
            f"{common.threshold_words(detector)} Calibrated on {tuned.calibrated_on}. Detector saved to {out_folder}.",
            markup=False,
        )
        print_guarantee(detector)
    common.finish(tuned.unreadable)


def _methods(given: list[str] | None) -> str | list[str]:
    methods = given or [DEFAULT_METHOD]
    return methods[0] if len(methods) == 1 else methods


def _print_comparison(comparison: TuningGain) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", overflow="fold")
    for heading in ("accuracy", "gain", "AUROC", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in comparison.rows:
        table.add_row(
            visible(row.method),
            _percent(row.accuracy),
            _gain(row.accuracy_gain),
            _percent(row.auroc),
            _gain(row.auroc_gain),
            "kept" if row.method == comparison.kept else "",
        )
    out.print(table)
    err.print(
        f"Measured on {comparison.images} {comparison.source}. AUROC: {comparison.score} tells classes that were left "
        "out of the tuning from the others. Gain: over zero-shot on the same images, with its 95 % interval.",
        markup=False,
    )
    for note in dict.fromkeys(row.note for row in comparison.rows if row.note):
        err.print(f"{note}.", markup=False)


def _percent(one: Estimate | None) -> str:
    return "–" if one is None else f"{100 * one.value:.1f}"


def _gain(one: Estimate | None) -> str:
    return "" if one is None else f"{100 * one.value:+.1f} ± {100 * (one.high - one.value):.1f}"


def _views(text: str) -> int | str:
    if text in ("live", "test"):
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise InputError(f"--views must be a whole number, test or live, got {text!r}.")
    return int(text)


def _print_epoch(log: EpochLog) -> None:
    parts = [f"epoch {log.epoch:>3}", f"loss {log.loss:.4f}", f"accuracy {log.accuracy:.1%}"]
    if log.stage > 1:
        parts.insert(0, f"stage {log.stage}")
    if log.val_accuracy is not None:
        parts.append(f"validation {log.val_accuracy:.1%}")
    parts += [f"{name} {value:.4g}" for name, value in log.logged.items()]
    err.print("  ".join(parts) + f"  {log.seconds:.1f} s", markup=False, soft_wrap=True)


def _summary(folder: Path, tuned: TunedDetector) -> dict[str, Any]:
    classifier, detector = tuned.detector.classifier, tuned.detector
    return {
        "detector": str(folder),
        "method": classifier.method.spec,
        "classes": list(classifier.classes),
        "images": tuned.training_images,
        "kept_epoch": classifier.record["kept_epoch"],
        "chosen": classifier.record.get("chosen"),
        "validation": classifier.record.get("validation"),
        "searched": classifier.record.get("searched"),
        "score": detector.score.spec,
        "threshold": detector.threshold,
        "calibrated_on": tuned.calibrated_on,
        "guarantee": None if detector.guarantee is None else detector.guarantee.to_dict(),
        "comparison": None if tuned.comparison is None else tuned.comparison.to_dict(),
        "unreadable": [{"path": image.id, "reason": image.reason} for image in tuned.unreadable],
    }
