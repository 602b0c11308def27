"""Checkpoints of a training run: `checkpoint.json` bound to a safetensors file, written atomically.

A checkpoint replaces the previous one atomically (see `deltaenergy.files.artifact`): a run that is killed, or gets a
full disk, leaves the last complete one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError, DeltaEnergyError, OutputError
from deltaenergy.files import read_bound, read_json, remove_bound, write_bound
from deltaenergy.files.schema import Where, anything, check_finite, mapping_of, record, text, whole

FORMAT = "deltaenergy checkpoint 2"
RECORD = "checkpoint.json"
_RECORD = record(
    {
        "format": text(among=[FORMAT]),
        "epoch": whole(0),
        "identity": mapping_of(anything()),
        "values": mapping_of(anything()),
    }
)


class TrainingError(DeltaEnergyError, RuntimeError):
    """Training cannot continue; earlier checkpoints stay."""


class SavingError(TrainingError, OutputError):
    """Training cannot continue because its state cannot be written, for example to a full disk."""


@contextlib.contextmanager
def saving(what: str, folder: Path, stays: str) -> Iterator[None]:
    """Turn a failure to write, such as a full disk, into a message that says what was saved before."""
    try:
        yield
    except Exception as error:
        # safetensors reports a full disk with its own error, so the type of error says nothing.
        raise SavingError(
            f"{what} could not be written to {folder}: {error}.\n{stays} Make room and run the same again to resume."
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
        folder: created if it does not exist.
        identity: what the run is (model, classes, method, recipe, sample …), as JSON values. A checkpoint of
            another run is refused with a list of what differs.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        # As it will be read again: tuples become lists.
        self.identity: dict[str, Any] = json.loads(json.dumps(dict(identity)))
        self.saved_epoch: int | None = None

    def load(self) -> Checkpoint | None:
        """The last checkpoint of this run, or None if there is none yet."""
        path = self.folder / RECORD
        if not path.exists():
            return None
        found = read_json(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ArtifactError(f"{path} is not a checkpoint of this version. Move it away to start again.")
        saved, tensors = read_bound(self.folder, RECORD)
        _RECORD(saved, Where(str(path)))
        for name, tensor in tensors.items():
            check_finite(tensor, Where(str(path), name))
        self._refuse_another_run(saved["identity"])
        self.saved_epoch = saved["epoch"]
        return Checkpoint(saved["epoch"], tensors, saved["values"])

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint`. If that fails, for example on a full disk, the previous one stays intact."""
        described = {
            "format": FORMAT,
            "epoch": checkpoint.epoch,
            "identity": self.identity,
            "values": checkpoint.values,
        }
        with saving(f"The checkpoint after epoch {checkpoint.epoch}", self.folder, self.describe_last()):
            write_bound(self.folder, RECORD, described, checkpoint.tensors)
        self.saved_epoch = checkpoint.epoch

    def remove(self) -> None:
        """Remove the checkpoint of a finished run, and the folder if it is then empty."""
        remove_bound(self.folder, RECORD)
        self.saved_epoch = None

    def _refuse_another_run(self, saved: dict[str, Any]) -> None:
        keys = [key for key in sorted({*saved, *self.identity}) if saved.get(key) != self.identity.get(key)]
        if keys:
            differs = "\n".join(f"  {key}: saved {saved.get(key)!r}, now {self.identity.get(key)!r}" for key in keys)
            raise ArtifactError(
                f"{self.folder} contains the checkpoint of another run:\n{differs}\nChoose another folder, or delete "
                "this one to start again."
            )

    def describe_last(self) -> str:
        """A sentence on what a later run can resume from."""
        if self.saved_epoch is None:
            return "There is no earlier checkpoint."
        return f"The checkpoint of epoch {self.saved_epoch} is in {self.folder}."
