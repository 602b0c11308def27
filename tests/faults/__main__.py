"""Run all faults, more of them than the tests do, and print how many were tried: `python -m tests.faults [seed]`."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deltaenergy import load_model
from tests.checkpoints import write_clip
from tests.faults import kills, mutations, runs
from tests.faults.subjects import make_detectors, train_set_for, unit_features
from tests.labelled_pictures import write_pictures


def main(seed: int) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        model = load_model(write_clip(root / "clip"))
        pictures = write_pictures(root / "pictures")
        detectors = make_detectors(model, train_set_for(model, pictures), root)
        features = unit_features(5, model.feature_dim, seed=7)
        old, new = detectors["react"], detectors["coop"]
        jobs: dict[str, Callable[[Path], Counter[str]]] = {
            "save a detector": lambda place: kills.detector_saved(new, features, place, thorough=True),
            "overwrite a detector": lambda place: kills.detector_overwritten(old, new, features, place, thorough=True),
            "overwrite a classifier": lambda place: kills.classifier_overwritten(
                old.classifier, new.classifier, features, place, thorough=True
            ),
            "checkpoints": lambda place: kills.checkpoints(place, thorough=True),
            "benchmark results": lambda place: kills.benchmark_results(place, thorough=True),
        }
        for ending in (".csv", ".jsonl", ".parquet", ".xlsx"):
            jobs[f"score --out table{ending}"] = lambda place, ending=ending: kills.table_of_scores(
                ending, place, thorough=True
            )  # type: ignore[misc]
        jobs["tune"] = lambda place: runs.tuned(model, pictures, place, thorough=True)
        jobs["features"] = lambda place: runs.stored(pictures, place, thorough=True)
        jobs["bench"] = lambda place: runs.benchmarked(model, place, thorough=True)
        print("Faults at every file operation; all left the old or the new, and the next run ended alike")
        for what, job in jobs.items():
            tried = job(root / what)
            print(f"  {what:28}", ", ".join(f"{kind} {count}" for kind, count in tried.items()), flush=True)
        print("Damaged detectors")
        total: Counter[str] = Counter()
        names = list(detectors)
        for position, name in enumerate(names):
            place = root / f"damaged-{position}"
            total += mutations.campaign(
                detectors[name], detectors[names[position - 1]], features, place, seed=seed, values=99, flips=400
            )
        for kind in dict.fromkeys(key.rsplit(": ", 1)[0] for key in sorted(total)):
            counts = [f"{outcome} {total[f'{kind}: {outcome}']}" for outcome in ("refused", "same", "other")]
            print(f"  {kind:28}", ", ".join(counts))
        print(f"  {'all':28}", total.total())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
