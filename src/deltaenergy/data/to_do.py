"""What a run that fills a store has still to do: the images that its shards do not hold as they are now."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from deltaenergy.data.content import stamp_of
from deltaenergy.data.decode import Refusal
from deltaenergy.data.filling import hash_all
from deltaenergy.data.items import ImageItem
from deltaenergy.data.plan import Planned, digest_of
from deltaenergy.data.references import refer
from deltaenergy.data.shards import Entry, Shard
from deltaenergy.data.store import latest_entries
from deltaenergy.files import hash_value

# Copies are looked for among so many different pictures, which takes some 100 MB; beyond, within a shard only.
MOST_CONTENTS = 1_000_000
_HASHED_AT_ONCE = 1024


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
    """The images among `items` that `shards` do not hold, in order."""

    def __init__(self, items: Sequence[ImageItem], shards: Sequence[Shard], retry_unreadable: bool) -> None:
        entries, places = latest_entries(shards)
        known = {entry.id: (entry, place) for entry, place in zip(entries, places)}
        self._contents = {entry.content for shard in shards for entry in shard.entries if entry.row is not None}
        self.pending = []
        for item in items:
            stamp = stamp_of(item)
            entry, place = known.get(item.id, (None, None))
            same = entry is not None and (entry.stamp, entry.label, entry.domain) == (stamp, item.label, item.domain)
            finished = place is not None or (entry is not None and entry.error is not None and not retry_unreadable)
            if not (same and finished):
                before = hash_value(list(entry)) if entry is not None and place is None else None
                self.pending.append(Pending(item, stamp, before))
        self.images = len(self.pending)
        self.pending += _withdrawals(items, entries)

    @cached_property
    def digest(self) -> str:
        """A hash of what is known of each image before it is read."""
        return digest_of(pending.known for pending in self.pending)

    def in_memory(self) -> dict[str, ImageItem]:
        """The pictures that exist only in this process, by id."""
        return {pending.item.id: pending.item for pending in self.pending if refer(pending.item.source) is None}

    def planned(self) -> Iterator[Planned]:
        """A line of the plan for each. Of pictures with equal bytes the first brings the features."""
        seen = {content for content in self._contents if content is not None}
        pending = iter(self.pending)
        while part := list(itertools.islice(pending, _HASHED_AT_ONCE)):
            looked_for = [one.item for one in part if not one.withdrawn] if len(seen) < MOST_CONTENTS else []
            found = dict(zip([item.id for item in looked_for], hash_all(looked_for)))
            for one in part:
                content, error = found.get(one.item.id, (None, None))
                # Whether a picture that was not looked at is a copy, its shard finds out.
                brings = not one.withdrawn and error is None and (content is None or content not in seen)
                if content is not None:
                    seen.add(content)
                yield _line(one, content, error, brings)


def _line(pending: Pending, content: str | None, error: str | None, brings: bool) -> Planned:
    item = pending.item
    source = None if pending.withdrawn else refer(item.source)
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


def _withdrawals(items: Sequence[ImageItem], entries: Sequence[Entry]) -> list[Pending]:
    """Entries for folders that could not be listed earlier, and of which there are images now."""
    closed = [entry for entry in entries if entry.error is not None and entry.content is None]
    if not closed:
        return []
    given = {item.id for item in items}
    listed = {str(parent) for item in items for parent in PurePosixPath(item.id).parents}
    return [
        Pending(ImageItem(entry.id, Refusal("withdrawn")), "withdrawn", withdrawn=True)
        for entry in closed
        if entry.id in listed and entry.id not in given
    ]
