"""Fill a feature store on Ray: one task a planned shard, on actors that each load the model once.

    de.build_store(model, "photos/", "photos.store", fill=de.scale.RayActors("auto"))
    deltaenergy features photos/ --out photos.store --ray auto

An actor looks first whether its shard is there, and commits it by itself: what is done stays done whatever dies, and
the bytes of the store are those that one process makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deltaenergy.errors import DeltaEnergyError
from deltaenergy.scale.ray_cluster import Failed, check_device, connected
from deltaenergy.scale.shard_worker import ShardWorker, as_filled, settings_of
from deltaenergy.store.filling import PlanGone
from deltaenergy.store.writer import Filled, Task

_BUSY_SECONDS = 0.5


class RayActors:
    """Actors of a Ray, for `build_store(…, fill=…)`. Each machine must see the images, the model and the store.

    Args:
        address: `local` (a Ray of its own on this machine), `auto` (the one that runs here) or HOST:PORT.
        workers: how many actors; as many as there are CPUs, or GPUs where the device is one.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, address: str = "local", workers: int | None = None, device: str = "auto") -> None:
        check_device(device)
        self.address, self.workers, self.device = address, workers, device

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        """Fill the shards at these positions of the plan, and give each when it is there."""
        settings_of(task, "cpu", 1)  # says what cannot be handed to others before Ray starts
        if not positions:
            return
        with connected(self.address, self.workers) as cluster:
            device, count = cluster.places(self.device, self.workers)
            settings = settings_of(task, device, 1 if device == "cpu" else None)
            for filled in cluster.run(ShardActor, settings, positions, device=device, workers=count):
                if filled is None:
                    raise PlanGone
                yield as_filled(filled)


class ShardActor:
    """An actor: loads the model when it is first needed, and encodes one planned shard after the other."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._worker: ShardWorker | None = None

    def prepare(self) -> Failed | None:
        """Load the model, as each task would."""
        try:
            self._load()
        except PlanGone:
            return None  # the first task will say so
        except (OSError, DeltaEnergyError) as error:
            return Failed.of(error)
        return None

    def work(self, position: int) -> dict[str, Any] | Failed | None:
        """The shard at `position` as plain values; None if another run has finished the store."""
        try:
            while (filled := self._load().fill(position)) is None:
                time.sleep(_BUSY_SECONDS)  # another run is at this shard
        except PlanGone:
            return None
        except (OSError, DeltaEnergyError) as error:
            return Failed.of(error)
        return filled

    def close(self) -> None:
        """Hold the store no longer: its lock is removed by the last who does."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _load(self) -> ShardWorker:
        if self._worker is None:
            self._worker = ShardWorker(self._settings)
        return self._worker
