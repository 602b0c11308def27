"""What a run that fills a store has still to do: the images that its shards do not hold as they are now."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from deltaenergy.data.items import ImageItem, change_stamp, is_in_memory, to_reference
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError
from deltaenergy.files import hash_value
from deltaenergy.store.filling import hash_all
from deltaenergy.store.plan import Digest, Planned
from deltaenergy.store.shards import Shard
from deltaenergy.store.store import StoredImage, latest_entries


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How much is held in memory while a run is planned.

    Attributes:
        contents: copies are looked for among this many different images (some 100 MB); beyond, within a shard only.
        hashed_at_once: images that are hashed together.
        kept: of more images than these the list is not kept between the survey and the plan, but made again.
    """

    contents: int = 1_000_000
    hashed_at_once: int = 1024
    kept: int = 100_000


LIMITS = PlanLimits()


@dataclass(frozen=True, slots=True)
class Pending:
    """An image to be done, with its stamp; or an entry that is to be withdrawn.

    `before` is a hash of what the store says of an image that could not be read.
    """

    item: ImageItem
    stamp: str
    before: str | None = None
    withdrawn: bool = False

    @property
    def known(self) -> tuple[str | None, ...]:
        """What is known of it before it is read."""
        return self.item.id, self.item.label, self.item.domain, self.stamp, self.before, str(self.withdrawn)


class ToDo:
    """The images of a stream that `shards` do not hold, in order; beyond `limits.kept`, listed anew when needed.

    Attributes:
        total: how many images the stream has.
        images: how many of them are to be done.
        lines: those, and the entries to be withdrawn.
        digest: a hash of what is known of each line before its picture is read.
        in_memory: the pictures that exist only in this process, by id.
    """

    def __init__(
        self, stream: ImageStream, shards: Sequence[Shard], retry_unreadable: bool, limits: PlanLimits = LIMITS
    ) -> None:
        self._stream, self._retry_unreadable, self._limits = stream, retry_unreadable, limits
        entries, places = latest_entries(shards)
        self._known = {entry.id: (entry, place) for entry, place in zip(entries, places)}
        self._contents = {entry.content for shard in shards for entry in shard.entries if entry.row is not None}
        self._kept: list[Pending] | None = []
        self.total = self.images = self.lines = 0
        self.in_memory: dict[str, ImageItem] = {}
        digest = Digest()
        for pending in self._listed():
            self._survey(pending)
            digest.add(pending.known)
        self.digest = digest.text

    def planned(self) -> Iterator[Planned]:
        """A line of the plan for each. Of pictures with equal bytes the first brings the features."""
        seen = {content for content in self._contents if content is not None}
        digest = Digest()
        pending = iter(self._listed() if self._kept is None else self._kept)
        while part := list(itertools.islice(pending, self._limits.hashed_at_once)):
            few = len(seen) < self._limits.contents
            looked_for = [one.item for one in part if few and not one.withdrawn]
            found = dict(zip([item.id for item in looked_for], hash_all(looked_for)))
            for one in part:
                digest.add(one.known)
                content, error = found.get(one.item.id, (None, None))
                # Whether a picture that was not looked at is a copy, its shard finds out.
                brings = not one.withdrawn and error is None and (content is None or content not in seen)
                if content is not None:
                    seen.add(content)
                yield _line(one, content, error, brings)
        if digest.text != self.digest:
            raise InputError("The images changed while they were being listed. Run it again when they are at rest.")

    def _survey(self, pending: Pending) -> None:
        self.images += not pending.withdrawn
        self.lines += 1
        if is_in_memory(pending.item):
            self.in_memory[pending.item.id] = pending.item
        if self._kept is not None:
            self._kept.append(pending)
            if len(self._kept) > self._limits.kept:
                self._kept = None

    def _listed(self) -> Iterator[Pending]:
        self.total = 0
        for item in self._stream:
            self.total += 1
            if isinstance(item.source, StoredImage):
                raise stored_already()
            stamp = change_stamp(item)
            entry, place = self._known.get(item.id, (None, None))
            same = entry is not None and (entry.stamp, entry.label, entry.domain) == (stamp, item.label, item.domain)
            failed = entry is not None and entry.error is not None
            finished = place is not None or (failed and not self._retry_unreadable)
            if not (same and finished):
                before = hash_value(list(entry)) if entry is not None and place is None else None
                yield Pending(item, stamp, before)
        yield from self._withdrawals()

    def _withdrawals(self) -> Iterator[Pending]:
        """Entries for folders that could not be listed earlier, and of which there are images now."""
        closed = [entry for entry, _ in self._known.values() if entry.error is not None and entry.content is None]
        if not closed:
            return
        given, parents = set(), set()
        for item in self._stream:
            given.add(item.id)
            parents.add(str(PurePosixPath(item.id).parent))
        listed = {*parents, *(str(above) for parent in parents for above in PurePosixPath(parent).parents)}
        for entry in closed:
            if entry.id in listed and entry.id not in given:
                yield Pending(ImageItem(entry.id, None, problem="withdrawn"), "withdrawn", withdrawn=True)


def stored_already() -> InputError:
    """The error for images whose features are in a store, and not the pictures."""
    return InputError("images is a feature store already: give the pictures that it should be made from.")


def _line(pending: Pending, content: str | None, error: str | None, brings: bool) -> Planned:
    item = pending.item
    source = None if pending.withdrawn else to_reference(item)
    return Planned(
        item.id,
        item.label,
        item.domain,
        pending.stamp,
        content,
        error,
        brings,
        pending.withdrawn,
        pending.before,
        source,
    )
