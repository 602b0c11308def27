"""One run that fills a store: what is there, what is to be done, the plan of it, and how it ends."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from deltaenergy.core.progress import Progress
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import ArtifactError
from deltaenergy.store.filling import Fill, Filled, PlanGone, Task, said_if_impossible
from deltaenergy.store.folder import Place
from deltaenergy.store.holding import Hold
from deltaenergy.store.manifest import Manifest, ShardRecord, read_manifest, write_manifest
from deltaenergy.store.plan import FOLDER, Plan, committed, free_numbers, is_whole, read_plan, remove_plan, write_plan
from deltaenergy.store.repair import Inspection, inspect
from deltaenergy.store.shards import Shard, committed_shard, damaged_files, part_name, remove_leftovers, remove_shard
from deltaenergy.store.to_do import LIMITS, PlanLimits, ToDo


class JustFinished(Exception):
    """Another run has finished the plan, or given it up: look at the store again."""


class Run:
    """What a run finds in a store and does with it; `hold` is its hold on the store."""

    def __init__(
        self,
        place: Place,
        manifest: Manifest,
        stream: ImageStream,
        retry_unreadable: bool,
        hold: Hold,
        limits: PlanLimits = LIMITS,
    ) -> None:
        self.place, self.record, self.stream, self.hold = place, manifest.record, stream, hold
        self._retry_unreadable, self._limits = retry_unreadable, limits
        self._look(manifest)

    def _look(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.base: Inspection = inspect(self.place, manifest, self.stream)
        self.todo = ToDo(self.stream, self.base.sound, self._retry_unreadable, self._limits)

    @property
    def _listed(self) -> list[ShardRecord]:
        return [shard.record for shard in self.base.sound]

    def plan(self) -> Plan | None:
        """The plan that is there already, if it is of the same images, or a new one; None if nothing is to be done."""
        found = self._plan_of_before()
        if found is not None and self._fits(found):
            self._share(found)
            return found
        if not self.hold.alone:
            if found is not None:
                raise self.hold.busy()
            if self.todo.lines or not self.manifest.record.complete:
                raise JustFinished
            return None
        with said_if_impossible(self.place):
            if found is not None or self.place.names(FOLDER):
                self._adopt(found)
            return self._new_plan()

    def fill(self, task: Task, fill: Fill, progress: Progress | None) -> None:
        """Have the shards of the plan that are not there filled, and list all of them."""
        present = {shard.number: Filled(shard.record, shard.idle) for shard in committed(self.place, task.plan)}
        positions = [i for i, number in enumerate(task.plan.shards) if number not in present]
        so_far = _SoFar(task.plan, self.todo.images, self.todo.total, progress)
        for position in set(range(len(task.plan.shards))).difference(positions):
            so_far(position, task.plan.size_of(position))
        try:
            for filled in fill(task, positions, so_far):
                present[filled.record.number] = filled
                so_far.finished(filled.record.number)
        except PlanGone:
            self.place.remove_folder(FOLDER)
            raise JustFinished from None
        with said_if_impossible(self.place):
            self._finish(list(present.values()))

    def _plan_of_before(self) -> Plan | None:
        try:
            return read_plan(self.place)
        except ArtifactError:
            if self.hold.alone:
                return None  # its shards are encoded again
            raise

    def _fits(self, plan: Plan) -> bool:
        """Whether the plan is of the images that are to be done now, and its shards are sound."""
        size = self.manifest.record.shard_size
        if self.base.damaged or (plan.digest, plan.shard_size) != (self.todo.digest, size):
            return False
        if self.hold.alone:
            if not is_whole(self.place, plan):
                return False
            with said_if_impossible(self.place):
                self.place.tidy()
                self.place.tidy(FOLDER)
                _sound(self.place, plan)
        return True

    def _share(self, plan: Plan) -> None:
        self.hold.share()
        # Another run may have held the store alone just now. It has finished this plan, or made another.
        now = read_plan(self.place)
        if now is not None and now.digest != plan.digest:
            raise self.hold.busy()

    def _adopt(self, plan: Plan | None) -> None:
        """Give up a plan of other images, and keep what it has brought."""
        shards = _sound(self.place, plan) if plan is not None else []
        listed = {record.number for record in self._listed}
        more = [shard.record for shard in shards if not shard.idle and shard.number not in listed]
        if more:
            record = replace(self.record, complete=False)
            write_manifest(self.place, record, [*self._listed, *more])
        if plan is not None:
            kept = {*listed, *(record.number for record in more)}
            remove_leftovers(self.place, set(plan.shards) - kept)
        remove_plan(self.place)
        if more:
            self._look(read_manifest(self.place))

    def _new_plan(self) -> Plan | None:
        self.place.tidy()
        self.place.remove_folder(FOLDER)
        if not self.todo.lines:
            if self.base.damaged or not self.manifest.record.complete:
                write_manifest(self.place, replace(self.record, complete=True), self._listed)
            self._remove_damaged()
            return None
        size = self.record.shard_size
        count = -(-self.todo.lines // size)
        numbers = free_numbers((record.number for record in self._listed), count)
        plan = Plan(self.todo.lines, size, self.todo.digest, numbers)
        write_manifest(self.place, replace(self.record, complete=False), self._listed)
        self._remove_damaged()
        remove_leftovers(self.place, numbers)
        write_plan(self.place, plan, self.todo.planned())
        self._share(plan)
        return plan

    def _remove_damaged(self) -> None:
        for damaged in self.base.damaged:
            remove_shard(self.place, damaged.number)

    def _finish(self, filled: Sequence[Filled]) -> None:
        """List all shards. Several runs that shared the plan write the same."""
        new = [one.record for one in filled if not one.idle]
        write_manifest(self.place, replace(self.record, complete=True), [*self._listed, *new])
        for one in filled:
            if one.idle:
                remove_shard(self.place, one.record.number)
        remove_plan(self.place)


class _SoFar:
    """Counts images over shards that are encoded in any order."""

    def __init__(self, plan: Plan, to_do: int, total: int, progress: Progress | None) -> None:
        self._plan, self._total, self._progress = plan, total, progress
        self._before = total - to_do
        self._done: dict[int, int] = {}
        self._positions = {number: position for position, number in enumerate(plan.shards)}
        self._sum = 0

    def __call__(self, position: int, done: int) -> None:
        """So many images of the shard at `position` are done."""
        self._sum += done - self._done.get(position, 0)
        self._done[position] = done
        if self._progress is not None:
            self._progress(min(self._before + self._sum, self._total), self._total)

    def finished(self, number: int) -> None:
        """All of a shard is done."""
        position = self._positions[number]
        self(position, self._plan.size_of(position))


def _sound(place: Place, plan: Plan) -> list[Shard]:
    """The shards of a plan that are there with every byte; the others are removed, and encoded again."""
    sound = []
    present = set(place.names())
    for number in plan.shards:
        if part_name(number, "index") not in present:
            continue
        try:
            shard = committed_shard(place, number)
            damaged = bool(damaged_files(place, shard.record))
        except ArtifactError:
            damaged = True
        if not damaged:
            sound.append(shard)
            continue
        warnings.warn(f"{place}: shard {number:05d} is damaged; its images are encoded again.", stacklevel=5)
        remove_shard(place, number)
    return sound
