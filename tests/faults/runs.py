"""Whole commands that are killed at their file operations: tune, features and bench, with models that take no time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deltaenergy import Detector, Model
from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.pipeline import TRAINING, tune_detector
from deltaenergy.scale.build import build_store
from deltaenergy.store.store import Store
from tests.benchmarks.small import small_spec
from tests.data.colour_model import MeanColour
from tests.faults.harness import Fault, Outcome, campaign
from tests.faults.kills import check_said, check_users_files, put_users_files


def tuned(model: Model, pictures: Path, workspace: Path, **options: Any) -> Counter[str]:
    """`tune`: it goes on from its last epoch, and ends with the same tensors; only times differ."""

    def action(folder: Path) -> None:
        tune_detector(
            model,
            pictures,
            folder,
            "coop(context_length=2)",
            shots=2,
            views=1,
            recipe={"epochs": 2},
            score="mcm",
            overwrite=(folder / "detector.json").exists(),
        )

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        if (folder / "detector.json").exists():
            Detector.load(folder, model)
        else:
            assert outcome.ended != "done"

    timed = frozenset({"detector.json", TRAINING})
    return campaign(put_users_files, action, check, workspace, timed=timed, **options)


def stored(pictures: Path, workspace: Path, **options: Any) -> Counter[str]:
    """`features`: what is there is whole at any moment, and the next run ends with the same bytes."""
    model: Any = MeanColour()

    def action(folder: Path) -> None:
        build_store(model, pictures, folder / "store", shard_size=7, patches=True)

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        if outcome.ended == "done":
            assert Store.open(folder / "store").verify() == []

    return campaign(put_users_files, action, check, workspace, **options)


def benchmarked(model: Model, workspace: Path, **options: Any) -> Counter[str]:
    """`bench` with a tuner: a finished cell stays, and the next run does the others."""

    def action(folder: Path) -> None:
        summary = run_benchmark(small_spec(), model, DataRoot(), folder, methods=["msp", "coop/mcm"], seeds=[1])
        assert summary.computed + summary.found == 2

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        assert len(Results(folder).cells()) <= 2

    timed = frozenset({"log.jsonl", "classifier.json"})
    return campaign(put_users_files, action, check, workspace, timed=timed, **options)
