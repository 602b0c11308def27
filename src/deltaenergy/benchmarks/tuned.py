"""Tuned classifiers of a benchmark: tuned once per case, seed and tuner, and saved in the results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__
from deltaenergy.benchmarks.plan import PlannedCase
from deltaenergy.benchmarks.rows import BenchmarkRow
from deltaenergy.classifiers.base import Classifier
from deltaenergy.classifiers.saved import RECORD
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.files import hash_value, lock_folder
from deltaenergy.files.atomic import is_temporary, remove_litter
from deltaenergy.files.lock import NAME as LOCK

if TYPE_CHECKING:
    from deltaenergy.models.base import Model


def tuned_classifier(
    model: Model,
    planned: PlannedCase,
    row: BenchmarkRow,
    recipe: Mapping[str, Any],
    folder: Path,
    progress: Progress | None,
    *,
    validation: Sequence[ImageItem] | None = None,
    search: bool = False,
) -> Classifier:
    """The classifier from `folder`, or tuned with checkpoints and written there.

    On `validation` images the best epoch is kept, and with `search` the best of the row's grid.
    """
    from deltaenergy.tuning.prepare import DEFAULT_VIEWS, clear_run_folder, prepare_training
    from deltaenergy.tuning.tune import check_fits, tune

    sample, method = planned.train, row.method
    if sample is None or method is None:
        raise InputError(f"{row.label} needs training images.")
    identity: dict[str, Any] = {
        "model": model.fingerprint,
        "classes": planned.names,
        "sample": sample.hash,
        "seed": planned.seed,
        "tuner": method.spec,
        "recipe": dict(recipe),
        "validation": None if validation is None else [item.id for item in validation],
        "search": search,
        "deltaenergy": __version__,
    }
    if search:
        told = {"grid": row.grids, "fixed": row.fixed(len(planned.classes))}
        identity |= {key: value for key, value in told.items() if value}
    whole = folder / hash_value(identity)
    checkpoints = folder / f"{whole.name}.training"
    if not (whole / RECORD).is_file():
        check_fits(method, model, planned.names, len(sample.items), recipe)
        needs, views = method.needs_to_train, method.views_of(DEFAULT_VIEWS)
        # The views of a sample are encoded once for all tuners with the same needs.
        seen = "-".join(sorted(need.name.lower() for need in needs))
        cache = folder / f"views-{views}-{sample.hash}-{seen}-{model.fingerprint[:16]}"
        tuned = tune(
            model,
            planned.names,
            prepare_training(model, planned.names, sample, views=views, needs=needs, cache=cache, progress=progress),
            method,
            shots=sample.shots,
            seed=sample.seed,
            recipe=recipe,
            val=validation,
            search=search and sum(1 for _ in method.candidates(len(planned.classes))) > 1,
            checkpoints=checkpoints,
            progress=progress,
        )
        tuned.save(whole)
    # Now, or after a run that was killed between its last two steps.
    clear_run_folder(checkpoints)
    if any(path.name == LOCK or is_temporary(path.name) for path in whole.iterdir()):
        with lock_folder(whole):
            remove_litter(whole)
    return Classifier.load(whole, model)
