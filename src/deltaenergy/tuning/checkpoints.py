"""Checkpoints of a training run: tensors as safetensors, everything else as JSON, never a half one.

A checkpoint is `epoch-N.safetensors` and then `checkpoint.json`, which names it. The JSON file is replaced as a whole,
so it always points to a complete set of tensors; whatever it does not name is left over and removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError, DeltaEnergyError
from deltaenergy.files import read_json, read_tensors, write_json, write_tensors

FORMAT = 1


class TrainingError(DeltaEnergyError, RuntimeError):
    """Training cannot go on; what was saved before stays."""


@contextlib.contextmanager
def saving(what: str, folder: Path, stays: str) -> Iterator[None]:
    """Turn a failure to write, such as a full disk, into a message that says what was saved before."""
    try:
        yield
    except Exception as error:
        # safetensors reports a full disk as an error of its own, so the kind of error is no guide here.
        raise TrainingError(
            f"{what} could not be written to {folder}: {error}.\n"
            f"{stays} Make room and run the same again: it goes on from there."
        ) from error


@dataclass(frozen=True)
class Checkpoint:
    """The state after `epoch` whole epochs."""

    epoch: int
    tensors: dict[str, torch.Tensor]
    values: dict[str, Any]


class CheckpointFolder:
    """Where one run saves its state.

    Args:
        folder: made if it does not exist.
        identity: what the run is (model, classes, method, recipe, sample …), as JSON values. A checkpoint of
            another run is refused with a list of what differs.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = dict(identity)
        self.saved_epoch: int | None = None

    def load(self) -> Checkpoint | None:
        """The last checkpoint of this run, or None if there is none yet."""
        record_path = self.folder / "checkpoint.json"
        if not record_path.exists():
            return None
        record = read_json(record_path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ArtifactError(
                f"{record_path} is not a checkpoint of this version. Delete {self.folder} to start anew."
            )
        saved = record.get("identity", {})
        keys = [key for key in sorted({*saved, *self.identity}) if saved.get(key) != self.identity.get(key)]
        if keys:
            differs = "\n".join(f"  {key}: saved {saved.get(key)!r}, now {self.identity.get(key)!r}" for key in keys)
            raise ArtifactError(
                f"{self.folder} holds the checkpoint of another run:\n{differs}\n"
                "Choose another folder, or delete this one to start anew."
            )
        self.saved_epoch = int(record["epoch"])
        tensors = read_tensors(self.folder / record["tensors"])
        return Checkpoint(self.saved_epoch, tensors, record["values"])

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint`. If that fails, for want of space say, the previous one stays whole."""
        name = f"epoch-{checkpoint.epoch}.safetensors"
        with saving(f"The checkpoint after epoch {checkpoint.epoch}", self.folder, self.describe_last()):
            write_tensors(self.folder / name, checkpoint.tensors)
            write_json(
                self.folder / "checkpoint.json",
                {
                    "format": FORMAT,
                    "epoch": checkpoint.epoch,
                    "tensors": name,
                    "identity": self.identity,
                    "values": checkpoint.values,
                },
            )
        self.saved_epoch = checkpoint.epoch
        for path in self.folder.glob("epoch-*.safetensors"):
            if path.name != name:
                path.unlink(missing_ok=True)

    def describe_last(self) -> str:
        """A sentence on what a later run can go on from."""
        if self.saved_epoch is None:
            return "There is no earlier checkpoint."
        return f"The checkpoint of epoch {self.saved_epoch} is in {self.folder}."
