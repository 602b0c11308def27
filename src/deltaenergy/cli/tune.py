"""`deltaenergy tune`: learn from a few labelled images per class, and save the result as a detector."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import err
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import ImageItem
    from deltaenergy.detector import Detector
    from deltaenergy.tuning.fewshot import FewShot
    from deltaenergy.tuning.loop import EpochLog

# Training images beyond the sample make an honest calibration set; this many are plenty.
MAX_HELD_OUT = 1000
CHECKPOINTS = "checkpoints"


def tune(
    train: Annotated[Path, typer.Option("--train", help="Folder with one subfolder of images per class.")],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tuned detector.")],
    method: Annotated[
        str, typer.Option("--method", help='Tuning method, such as "ebm(p=0.5)" or cocoop+ebm; see methods.')
    ] = "ebm",
    val: Annotated[
        Path | None, typer.Option("--val", help="Validation images, as --train: keep the best epoch on them.")
    ] = None,
    shots: Annotated[int, typer.Option("--shots", min=1, help="Training images per class.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws images, views, initial values and order.")] = 1,
    classes: common.ClassesOption = None,
    domains: Annotated[bool, typer.Option("--domains", help="Folders are DOMAIN/CLASS/ rather than CLASS/.")] = False,
    search: Annotated[bool, typer.Option("--search", help="Try the method's grid and keep the best on --val.")] = False,
    views: Annotated[str, typer.Option("--views", help="Random views per image, encoded once; or live.")] = "8",
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="[default: the method's, mostly 30]")] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Learning rate. [default: the method's, mostly 0.002]")
    ] = None,
    train_batch: Annotated[
        int | None, typer.Option("--train-batch", min=1, help="Images per training step. [default: mostly 32]")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--calibrate", help="In-distribution images for the threshold. [default: --val, or unused ones]"),
    ] = None,
    score: common.ScoreOption = None,
    keep: common.KeepOption = 0.95,
    model: common.ModelOption = "lite",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
) -> None:
    """Tune a classifier on a few images per class; the result is a detector that score and evaluate take.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from deltaenergy.classes import read_classes
    from deltaenergy.classifiers.methods import make_method
    from deltaenergy.classifiers.recipe import Recipe
    from deltaenergy.labels import class_names
    from deltaenergy.tuning import prepare
    from deltaenergy.tuning.fewshot import sample_few_shots
    from deltaenergy.tuning.tune import tune as run_tuning

    _check_out(out_folder, overwrite)
    scores = common.make_scores(score)
    if len(scores) != 1:
        raise InputError("A detector has one score: give --score once.")
    parsed = make_method(method)
    items = prepare.labelled_items(train, domains)
    names = read_classes(classes) if classes else class_names(items)
    sample = sample_few_shots(items, names, shots, seed)
    loaded = common.load_model_with_status(model, device)
    checkpoints = out_folder / CHECKPOINTS
    began = time.perf_counter()
    with common.progress_bar("Encoding images") as progress:
        train_set = prepare.prepare_training(
            loaded,
            names,
            sample,
            views=_views(views),
            needs=parsed.needs,
            cache=checkpoints,
            progress=progress,
        )
    changes = {"epochs": epochs, "lr": lr, "batch_size": train_batch}
    total = epochs or parsed.recipe.get("epochs", Recipe.epochs)
    tuned = run_tuning(
        loaded,
        names,
        train_set,
        parsed,
        seed=seed,
        val=val,
        domains=domains,
        search=search,
        recipe={name: value for name, value in changes.items() if value is not None},
        checkpoints=checkpoints,
        on_epoch=lambda log: _print_epoch(log, total),
        on_candidate=lambda spec, accuracy: err.print(f"{spec}: validation accuracy {accuracy:.1%}", markup=False),
    )
    from deltaenergy.detector import Detector

    detector = Detector(tuned, scores[0])
    source = _calibrate(detector, sample, items, calibrate or val, keep)
    from deltaenergy.files import write_json
    from deltaenergy.tuning.checkpoints import saving

    with saving("The tuned detector", out_folder, f"The finished training is in {checkpoints}."):
        write_json(
            out_folder / "training.json", {"method": tuned.method.spec, **tuned.record, "sample": sample.record()}
        )
        detector.save(out_folder)
    shutil.rmtree(checkpoints, ignore_errors=True)
    if json_output:
        common.print_json(_summary(out_folder, detector, source))
    else:
        seconds = time.perf_counter() - began
        err.print(
            f"{tuned.method.spec} tuned on {len(sample.items)} images of {len(names)} classes in {seconds:.0f} s. "
            f"Threshold {detector.threshold:.6g} for {detector.score.spec} keeps {keep:.0%} of "
            f"{len(detector.calibration_scores)} {source}. Detector saved to {out_folder}.",
            markup=False,
        )


def _check_out(folder: Path, overwrite: bool) -> None:
    if folder.is_file():
        raise InputError(f"--out {folder} is a file. Give a folder, which is made if it does not exist.")
    if overwrite:
        # Only what a tuning run writes; a folder may hold other things.
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    elif (folder / "detector.json").exists():
        raise InputError(f"--out {folder} holds a detector already. Choose another folder, or give --overwrite.")


def _views(text: str) -> int | str:
    if text == "live":
        return text
    if not text.isdigit():
        raise InputError(f"--views must be a whole number or live, got {text!r}.")
    return int(text)


def _print_epoch(log: EpochLog, total: int) -> None:
    parts = [f"epoch {log.epoch:>3}/{total}", f"loss {log.loss:.4f}", f"accuracy {log.accuracy:.1%}"]
    if log.val_accuracy is not None:
        parts.append(f"validation {log.val_accuracy:.1%}")
    parts += [f"{name} {value:.4g}" for name, value in log.logged.items()]
    err.print("  ".join(parts) + f"  {log.seconds:.1f} s", markup=False, soft_wrap=True)


def _calibrate(detector: Detector, sample: FewShot, items: list[ImageItem], held_out: Path | None, keep: float) -> str:
    """Set the threshold on the best images there are; returns what they were."""
    if held_out is not None:
        images: Any = held_out
        source = f"images in {held_out}"
    else:
        import numpy as np

        used = {item.id for item in sample.items}
        classes = {item.label for item in sample.items}
        rest = [item for item in items if item.id not in used and item.label in classes]
        images = [rest[i] for i in sorted(np.random.default_rng(sample.seed).permutation(len(rest))[:MAX_HELD_OUT])]
        source = "training images that were not drawn"
        if not rest:
            images, source = sample.items, "training images"
            err.print(
                "[yellow]There are no images beside those trained on, so the threshold was set on these: it will "
                "reject more than the share asked for. Give --val or --calibrate, or run calibrate on new images.[/]"
            )
    with common.progress_bar("Calibrating") as progress:
        detector.calibrate(images, keep, progress=progress)
    return source


def _summary(folder: Path, detector: Detector, source: str) -> dict[str, Any]:
    training = detector.classifier.record
    return {
        "detector": str(folder),
        "method": detector.classifier.method.spec,
        "classes": list(detector.classifier.classes),
        "images": training["images"],
        "kept_epoch": training["kept_epoch"],
        "validation": training.get("validation"),
        "searched": training.get("searched"),
        "score": detector.score.spec,
        "threshold": detector.threshold,
        "calibrated_on": source,
    }
