"""Checkpoints: whole, bound, of this run, and gone when they are no longer needed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from deltaenergy.errors import ArtifactError
from deltaenergy.files.artifact import sealed
from deltaenergy.training.checkpoints import Checkpoint, CheckpointFolder, TrainingError

IDENTITY = {"method": "coop", "recipe": {"lr": 0.1, "betas": (0.9, 0.99)}}


def state(epoch: int) -> Checkpoint:
    return Checkpoint(epoch, {"x": torch.full((2,), float(epoch))}, {"logs": [epoch]})


def test_the_last_one_is_loaded_and_is_all_there_is(tmp_path: Path) -> None:
    keeper = CheckpointFolder(tmp_path, IDENTITY)
    assert keeper.load() is None and keeper.describe_last() == "There is no earlier checkpoint."
    keeper.save(state(1))
    keeper.save(state(2))
    again = CheckpointFolder(tmp_path, IDENTITY)
    found = again.load()
    assert found is not None
    assert (found.epoch, found.values, found.tensors["x"].tolist()) == (2, {"logs": [2]}, [2.0, 2.0])
    assert "epoch 2" in again.describe_last()
    assert len(list(tmp_path.iterdir())) == 2


def test_only_its_own_files_are_removed(tmp_path: Path) -> None:
    for name in ("epoch-1.safetensors", "last.pt", "checkpoint.txt"):
        (tmp_path / name).write_text("mine")
    keeper = CheckpointFolder(tmp_path, IDENTITY)
    keeper.save(state(1))
    keeper.save(state(2))
    keeper.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.txt", "epoch-1.safetensors", "last.pt"]
    assert keeper.load() is None


def test_another_run_s_is_refused(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, IDENTITY).save(state(1))
    with pytest.raises(ArtifactError, match="saved 'coop', now 'ebm'"):
        CheckpointFolder(tmp_path, {**IDENTITY, "method": "ebm"}).load()
    for more, less in ((tmp_path / "more", {}), (tmp_path / "less", {"views": 8})):
        CheckpointFolder(more, {**IDENTITY, **({} if less else {"views": 8})}).save(state(1))
        with pytest.raises(ArtifactError, match=r"another run:\n  views: "):
            CheckpointFolder(more, {**IDENTITY, **less}).load()


def test_damage_is_found(tmp_path: Path) -> None:
    keeper = CheckpointFolder(tmp_path, IDENTITY)
    keeper.save(state(3))
    path = tmp_path / "checkpoint.json"
    record = json.loads(path.read_text())
    for changed, message in [
        ({**record, "epoch": 2}, "changed after it was written"),
        (sealed({**record, "epoch": -1}), "epoch is -1; expected a whole number from 0"),
        (sealed({**record, "values": []}), "values is a list of 0; expected an object"),
        (sealed({key: value for key, value in record.items() if key != "identity"}), "'identity' is missing"),
        ({**record, "format": 1}, "not a checkpoint of this version"),
        ([], "not a checkpoint of this version"),
    ]:
        path.write_text(json.dumps(changed))
        with pytest.raises(ArtifactError, match=message):
            keeper.load()
    keeper = CheckpointFolder(tmp_path / "other", IDENTITY)
    keeper.save(Checkpoint(1, {"x": torch.tensor([math.nan])}, {}))
    with pytest.raises(ArtifactError, match="'x' is NaN"):
        keeper.load()


def test_a_folder_in_the_way_is_said_and_what_was_saved_stays(tmp_path: Path) -> None:
    keeper = CheckpointFolder(tmp_path / "c", IDENTITY)
    keeper.save(state(1))
    whole = (tmp_path / "c").rename(tmp_path / "aside")
    (tmp_path / "c").write_text("a file")
    with pytest.raises(TrainingError, match=r"(?s)epoch 2 .*epoch 1 is in"):
        keeper.save(state(2))
    assert CheckpointFolder(whole, IDENTITY).load() is not None
