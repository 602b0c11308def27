"""`deltaenergy tune`: tune on a few labelled images per class, and save a detector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, print_json, print_table
from deltaenergy.core.specs import read_value
from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.evaluation.tuning_gain import TuningGain
    from deltaenergy.pipeline import TunedDetector
    from deltaenergy.stats.metrics import Estimate
    from deltaenergy.training.loop import EpochLog

# As in deltaenergy.tuning.tune, which is slow to import.
DEFAULT_METHOD, DEFAULT_VIEWS = "lp++", 8
RECIPE = ("epochs", "lr", "batch_size", "views")


@command("Make a detector", "deltaenergy tune --train few/ --shots 16 --out tuned/")
def tune(
    train: Annotated[str, typer.Option(help="Folder with one subfolder of images per class, or a feature store.")],
    out: o.OutDetectorOption,
    method: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=o.complete_method,
            help='Tuning method, such as "ebm(p=0.5)" or cocoop+ebm; repeat it, or use auto, to try several and keep '
            "the best.",
            show_default=DEFAULT_METHOD,
        ),
    ] = None,
    val: Annotated[str | None, o.unset(help="Validation images, as --train: keep the best epoch.")] = None,
    shots: Annotated[int, typer.Option(min=1, help="Training images per class.")] = 16,
    seed: Annotated[
        int, typer.Option(min=0, callback=o.at_most(o.LARGEST_SEED), help="Random seed (sampling, crops, order).")
    ] = 1,
    classes: o.ClassesOption = None,
    domains: Annotated[bool, typer.Option("--domains", help="Folders are DOMAIN/CLASS/ rather than CLASS/.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Search the method's grid and keep the best on --val.")
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Training settings, such as epochs=5,lr=0.01,batch_size=16. views=8: random crops per image, encoded "
            "once; views=live: new crops at every step; views=test: the plain image.",
            show_default=False,
        ),
    ] = None,
    id_images: Annotated[
        str | None,
        typer.Option("--id", help="Known images for the threshold.", show_default="--val, or unused images"),
    ] = None,
    score: o.ScoreOption = None,
    keep: Annotated[float, typer.Option(help="Share of new known images to keep, on average.")] = 0.95,
    model: o.ModelOption = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Tune a classifier on a few images per class and save it as a detector.

    Prints accuracy and AUROC next to zero-shot, measured on --val, on unused training images, or by cross-validation.
    Run the same command again to resume.
    """
    import deltaenergy as de

    methods, changes = method or [DEFAULT_METHOD], _recipe(recipe)
    began = time.perf_counter()
    tuned = de.tune_detector(
        model or "lite",
        train,
        out,
        methods[0] if len(methods) == 1 else methods,
        classes=classes,
        shots=shots,
        seed=seed,
        val=val,
        id_images=id_images,
        score=score,
        keep=keep,
        domains=domains,
        search=search,
        views=changes.pop("views", DEFAULT_VIEWS),
        recipe=changes,
        overwrite=overwrite,
        on=on,
        # With several methods, the epochs would bury the table that follows.
        on_epoch=_print_epoch if len(methods) == 1 and methods != ["auto"] else None,
        on_candidate=lambda spec, accuracy: err.print(f"{spec}: validation accuracy {accuracy:.1%}"),
    )
    if json:
        print_json(_record(out, tuned))
    else:
        if tuned.comparison is not None:
            _print_comparison(tuned.comparison)
        classifier = tuned.detector.classifier
        err.print(
            f"{classifier.method.spec} tuned on {tuned.training_images} images of {len(classifier.classes)} classes in "
            f"{time.perf_counter() - began:.0f} s. {results.threshold_words(tuned.detector)} Calibrated on "
            f"{tuned.calibrated_on}. Detector saved to {out}."
        )
        results.print_guarantee(tuned.detector)
    results.finish(tuned.unreadable)


def _recipe(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(",") if text is not None else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in RECIPE:
            raise InputError(f"`recipe` has no {name[:60]!r}.{did_you_mean(name[:60], RECIPE)}")
        found[name] = read_value(value)
        if isinstance(found[name], str) and (name, value) not in (("views", "live"), ("views", "test")):
            raise InputError(f"`recipe` {name} must be a number, got {value[:60]!r}.")
    return found


def _print_comparison(comparison: TuningGain) -> None:
    rows = [
        [
            row.method,
            _percent(row.accuracy),
            _gain(row.accuracy_gain),
            _percent(row.auroc),
            _gain(row.auroc_gain),
            "kept" if row.method == comparison.kept else "",
        ]
        for row in comparison.rows
    ]
    print_table(["method", ">accuracy", ">gain", ">AUROC", ">gain", ""], rows)
    err.print(
        f"Measured on {comparison.images} {comparison.source}. AUROC: how well {comparison.score} separates classes "
        "that were left out of the tuning from the others. Gain: over zero-shot on the same images, with its 95% "
        "interval."
    )
    for note in dict.fromkeys(row.note for row in comparison.rows if row.note):
        err.print(f"{note}.")


def _percent(one: Estimate | None) -> str:
    return "–" if one is None else f"{100 * one.value:.1f}"


def _gain(one: Estimate | None) -> str:
    return "" if one is None else f"{100 * one.value:+.1f} ± {100 * (one.high - one.value):.1f}"


def _print_epoch(log: EpochLog) -> None:
    parts = [f"epoch {log.epoch:>3}", f"loss {log.loss:.4f}", f"accuracy {log.accuracy:.1%}"]
    if log.stage > 1:
        parts.insert(0, f"stage {log.stage}")
    if log.val_accuracy is not None:
        parts.append(f"validation {log.val_accuracy:.1%}")
    parts += [f"{name} {value:.4g}" for name, value in log.logged.items()]
    err.print("  ".join(parts) + f"  {log.seconds:.1f} s")


def _record(folder: Path, tuned: TunedDetector) -> dict[str, Any]:
    classifier = tuned.detector.classifier
    saved = results.detector_record(folder, tuned.detector)
    return {
        **{key: value for key, value in saved.items() if key != "keep"},
        "method": classifier.method.spec,
        "classes": list(classifier.classes),
        "images": tuned.training_images,
        "kept_epoch": classifier.record["kept_epoch"],
        "chosen": classifier.record.get("chosen"),
        "validation": classifier.record.get("validation"),
        "searched": classifier.record.get("searched"),
        "calibrated_on": tuned.calibrated_on,
        "comparison": None if tuned.comparison is None else tuned.comparison.to_dict(),
        "unreadable": results.unreadable_records(tuned.unreadable),
    }
