"""What is killed at every file operation: saves, overwrites, checkpoints, results, tables of scores.

Each function tries all faults on one of them and returns how many; an `AssertionError` names the one that did harm.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from deltaenergy import Classifier, Detector
from deltaenergy.benchmarks.results import Cell, Results
from deltaenergy.detector.verdict_files import write_table
from deltaenergy.errors import OS_REMEDIES
from deltaenergy.files import hash_value, write_json
from deltaenergy.models.base import Model
from deltaenergy.training.checkpoints import Checkpoint, CheckpointFolder
from tests.faults.harness import FAILURES, Fault, Outcome, campaign

# What a user may have put there, some of it under names like ours.
USERS_FILES = {
    "notes.txt": b"mine",
    "tensors.safetensors": b"mine too",
    "detector-0123456789abcdef.safetensors": b"not what its name says",
    ".deltaenergy-notes.part": b"no temporary folder",
    "checkpoints/last.pt": b"of another program",
}


def put_users_files(folder: Path) -> None:
    for name, data in USERS_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def check_users_files(folder: Path) -> None:
    for name, data in USERS_FILES.items():
        assert (folder / name).read_bytes() == data, name


def check_said(fault: Fault, outcome: Outcome) -> None:
    """A failure is an error that a user understands, or was of no consequence."""
    if fault.kind in FAILURES and outcome.ended == "raised":
        understood = "OSError" in outcome.error or "DeltaEnergyError" in outcome.error
        assert understood, (fault, outcome)
        if fault.kind == "EACCES" and outcome.operations[-1].startswith("flock"):
            return  # some systems answer so if another process holds the lock, and that is what is said
        number = getattr(errno, fault.kind)
        words = (os.strerror(number).lower(), OS_REMEDIES[number][0])
        assert any(word in outcome.message.lower() for word in words), (fault, outcome)


def saved(save: Callable[[Path], None], load: Callable[[Path], Any], workspace: Path, **options: Any) -> Counter[str]:
    """A first save: there is nothing, or the whole."""
    whole = _loaded_from(save, load, workspace / "new")

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        if outcome.ended == "done" or list(folder.glob("*.json")):
            assert load(folder) == whole

    return campaign(put_users_files, save, check, workspace, **options)


def overwritten(
    save_old: Callable[[Path], None],
    save: Callable[[Path], None],
    load: Callable[[Path], Any],
    workspace: Path,
    **options: Any,
) -> Counter[str]:
    """A save in place of another: there is the old or the new, at any moment."""
    old, new = _loaded_from(save_old, load, workspace / "old"), _loaded_from(save, load, workspace / "new")
    assert old != new

    def prepare(folder: Path) -> None:
        put_users_files(folder)
        save_old(folder)

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        assert load(folder) in ([new] if outcome.ended == "done" else [old, new])

    return campaign(prepare, save, check, workspace, **options)


def _loaded_from(save: Callable[[Path], None], load: Callable[[Path], Any], folder: Path) -> Any:
    save(folder)
    return load(folder)


def detector_saved(detector: Detector, features: Any, workspace: Path, **options: Any) -> Counter[str]:
    return saved(detector.save, _verdicts(detector, features), workspace, **options)


def detector_overwritten(old: Detector, new: Detector, features: Any, workspace: Path, **options: Any) -> Counter[str]:
    return overwritten(old.save, new.save, _verdicts(new, features), workspace, **options)


def classifier_overwritten(
    old: Classifier, new: Classifier, features: Any, workspace: Path, **options: Any
) -> Counter[str]:
    def load(folder: Path) -> Any:
        return Classifier.load(folder, new.base_model).similarities(features).tolist()

    return overwritten(old.save, new.save, load, workspace, **options)


def _verdicts(detector: Detector, features: Any) -> Callable[[Path], Any]:
    model: Model = detector.classifier.base_model
    return lambda folder: list(Detector.load(folder, model).predict(features))


def checkpoints(workspace: Path, **options: Any) -> Counter[str]:
    """Two epochs, each saved; the run goes on from the last whole one, and removes it when it is done."""
    identity = {"method": "coop", "seed": 1}

    def state(epoch: int) -> Checkpoint:
        return Checkpoint(epoch, {"parameter": torch.full((3, 4), float(epoch))}, {"logs": [{"epoch": epoch}]})

    def action(folder: Path) -> None:
        keeper = CheckpointFolder(folder, identity)
        last = keeper.load()
        for epoch in range(1 if last is None else last.epoch + 1, 3):
            keeper.save(state(epoch))
        last = keeper.load()
        if last is not None:
            write_json(folder / "result.json", last.tensors["parameter"].tolist())
        keeper.remove()

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        last = CheckpointFolder(folder, identity).load()
        assert fault.at < 22 or last is not None or (folder / "result.json").exists()
        if last is not None:
            expected = state(last.epoch)
            assert torch.equal(last.tensors["parameter"], expected.tensors["parameter"])
            assert last.values == expected.values

    return campaign(put_users_files, action, check, workspace, **options)


def benchmark_cell(number: int) -> Cell:
    """A cell as the runner makes them."""
    decides: dict[str, Any] = {
        "benchmark": "small", "spec_hash": "0" * 16, "case": "drawn", "group": "drawn", "seed": number,
        "method": "msp", "tuner": None, "score": "msp", "protocol": "standard", "limit": None, "search": None,
        "shots": None, "template": "a {}.", "model_fingerprint": "f" * 32, "classes_hash": "c" * 16, "n_classes": 3,
        "fitted_on": None, "images_hash": "i" * 16, "deltaenergy": "0",
    }  # fmt: skip
    pair = {"closed": "flat", "kind": "id", "open": "open"}
    rows = [{**pair, "metric": "auroc", "value": 0.25 * number, "n_closed": 4, "n_open": 5}]
    curves = [{**pair, "ood_kept": [0, 1], "id_kept": [0, 1], "closed_scores": [0.5], "open_scores": [0.25]}]
    return Cell({**decides, "model": "tiny", "torch": "2", "cell": hash_value(decides)}, rows, curves)


def benchmark_results(workspace: Path, **options: Any) -> Counter[str]:
    """Two cells, the record of the run and the tables; a cell that is there is not done again."""
    cells = [benchmark_cell(number) for number in (1, 2)]
    record = {
        "benchmark": "small", "title": "Small", "spec_hash": "0" * 16, "protocol": "standard", "limit": None,
        "seeds": [1, 2], "methods": ["msp"], "model": {"name": "tiny", "fingerprint": "f" * 32},
        "model_fingerprint": "f" * 32, "deltaenergy": "0", "skipped": [], "unreadable": [],
    }  # fmt: skip

    def action(folder: Path) -> None:
        results = Results(folder)
        for cell in cells:
            if results.get(cell.id) is None:
                results.add(cell, 1.0)
        results.write_run(record)
        results.write_tables()

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        assert all(cell in cells for cell in Results(folder).cells())
        if (folder / "results.parquet").exists():
            assert pq.read_table(folder / "results.parquet").num_rows == 2
        if (folder / "results.json").exists():
            assert len(json.loads((folder / "results.json").read_text())["cells"]) == 2

    return campaign(put_users_files, action, check, workspace, timed=frozenset({"log.jsonl"}), **options)


def table_of_scores(ending: str, workspace: Path, **options: Any) -> Counter[str]:
    """`score --out` over an earlier table: the old one or the new one is there; what cannot be written is kept."""
    columns = ["path", "label", "score"]
    old = [{"path": "a.png", "label": "dog", "score": 0.5}]
    new = [{"path": f"{number}.png", "label": "Ähre, „x“", "score": number / 7} for number in range(9)]
    elsewhere = workspace / "temporary"
    elsewhere.mkdir(parents=True)
    example = workspace / f"example{ending}"
    write_table(example, [new], columns)
    written = example.read_bytes()

    def prepare(folder: Path) -> None:
        put_users_files(folder)
        write_table(folder / f"table{ending}", [old], columns)

    def action(folder: Path) -> None:
        tempfile.tempdir = str(elsewhere)
        write_table(folder / f"table{ending}", [new], columns)

    def check(folder: Path, fault: Fault, outcome: Outcome) -> None:
        check_users_files(folder)
        check_said(fault, outcome)
        there = (folder / f"table{ending}").read_bytes()
        if there != written:
            write_table(example, [old], columns)
            assert there == example.read_bytes()
        if outcome.ended == "raised":
            assert "OSError" in outcome.error
            kept = outcome.message.partition(" are in ")[2].rstrip(".")
            if kept:  # whole, or its first rows if its end could not be written
                found = Path(kept).read_bytes()
                assert found == written or (ending in (".csv", ".jsonl") and written.startswith(found))
                Path(kept).unlink()
                if elsewhere in Path(kept).parents:
                    Path(kept).parent.rmdir()

    before = tempfile.tempdir
    try:
        tried = campaign(prepare, action, check, workspace, **options)
    finally:
        tempfile.tempdir = before
    assert not any(elsewhere.iterdir())
    return tried
