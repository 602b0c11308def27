"""Encodes planned shards of one store: what a worker process does, and what an actor of an engine does."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deltaenergy.core.progress import Progress
from deltaenergy.errors import InputError
from deltaenergy.store.filling import Filler, PlanGone
from deltaenergy.store.folder import place_at
from deltaenergy.store.holding import Hold
from deltaenergy.store.manifest import FileRecord, ShardRecord, read_manifest
from deltaenergy.store.plan import read_plan
from deltaenergy.store.store import check_same_model
from deltaenergy.store.writer import Filled, Task


class ShardWorker:
    """Loads the model that made a store, and encodes shards of the plan that is in it.

    Args:
        settings: as `settings_of` gives them; plain values, so that they can be sent anywhere.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch

        from deltaenergy.models.loading.load import load_recorded

        if settings["threads"] is not None:
            torch.set_num_threads(settings["threads"])
        place = place_at(settings["store"])
        # Should whoever planned it be killed: no other run plans anew before this worker has ended, too.
        self._hold = Hold(place).join()
        plan = read_plan(place)
        if plan is None or plan.digest != settings["digest"]:
            raise PlanGone
        record = read_manifest(place).record
        model = load_recorded(settings["model"], settings["device"])
        check_same_model(place, record.model, model)
        self._filler = Filler(place, record, plan, model, settings["batch_size"])

    def fill(self, position: int, progress: Progress | None = None) -> dict[str, Any] | None:
        """The shard at `position` of the plan as plain values (`as_filled` reads them); None while another is at it."""
        shard = self._filler.fill(position, progress)
        return None if shard is None else {"record": asdict(shard.record), "idle": shard.idle}

    def close(self) -> None:
        """Hold the store no longer; no shard can be filled after that."""
        self._hold.__exit__(None, None, None)


def settings_of(task: Task, device: str, threads: int | None) -> dict[str, Any]:
    """What a `ShardWorker` must know of a task; an error if some of its pictures exist only in this process."""
    if task.in_memory:
        raise InputError(
            f"The picture {next(iter(task.in_memory))!r} is no file, and cannot be handed to other processes. "
            "Save the pictures and give their folder, or let this process encode them."
        )
    model = dict(task.record.model)
    if Path(model["name"]).expanduser().is_dir():
        model["name"] = os.path.abspath(Path(model["name"]).expanduser())  # noqa: PTH100
    return {
        "store": task.place.address,
        "digest": task.plan.digest,
        "model": model,
        "device": device,
        "batch_size": task.batch_size,
        "threads": threads,
    }


def as_filled(values: dict[str, Any]) -> Filled:
    """What `ShardWorker.fill` gave."""
    record = values["record"]
    files = {kind: FileRecord(**part) for kind, part in record["files"].items()}
    return Filled(ShardRecord(**{**record, "files": files}), values["idle"])
