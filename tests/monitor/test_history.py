"""What is remembered: blocks that merge, classes before and now, and since when."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy.monitor.history import MOST_BLOCKS, Block, ClassChange, History, SeenPicture, changed_since
from tests.monitor.made import ids_of, labels_of, make_detector


def feed(history: History, entries: list[tuple[str, bool]]) -> None:
    for number, (label, flagged) in enumerate(entries, start=1):
        history.add(SeenPicture(number, f"{number}.jpg", label, 0.0, True), flagged, float(number), 0.0, f"t{number}")


@given(st.lists(st.booleans(), max_size=2000))
def test_blocks_hold_every_image_in_order(flags: list[bool]) -> None:
    history = History()
    feed(history, [("dog", flag) for flag in flags])
    assert len(history.blocks) <= MOST_BLOCKS
    ends = list(itertools.accumulate(block.images for block in history.blocks))
    for block, end in zip(history.blocks, ends):
        assert block.flagged == sum(flags[end - block.images : end])
        assert (block.rate, block.time) == (end, f"t{end}"), "evidence and time are those of its last image"
    assert (ends[-1] if ends else 0) == len(flags)
    assert all(block.images == history.block_size for block in history.blocks[:-1])


def test_classes_of_the_last_500_beside_all_before() -> None:
    history = History()
    feed(history, [("dog", i % 50 == 0) for i in range(600)] + [("cat", False)] * 400)
    feed(history, [("dog", True)] * 30 + [("cat", i < 5) for i in range(470)])
    changes = {change.label: change for change in history.changes()}
    assert changes["dog"] == ClassChange("dog", 600, 12, 30, 30)
    assert changes["cat"] == ClassChange("cat", 400, 0, 470, 5)
    assert [change.label for change in history.changes()] == ["dog", "cat"], "30 too many, against 5"


def test_the_last_flagged_pictures() -> None:
    history = History()
    feed(history, [("dog", i % 2 == 0) for i in range(200)])
    assert [seen.number for seen in history.pictures] == list(range(105, 200, 2))


def block(flagged: int) -> Block:
    return Block(10, flagged, 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("flagged", "since"),
    [([0, 1, 0, 5, 6, 4], 30), ([0, 0, 0, 10], 30), ([5, 4, 3, 2], None), ([3], None), ([], None), ([2, 2, 2], None)],
)
def test_since_when(flagged: list[int], since: int | None) -> None:
    assert changed_since([block(count) for count in flagged]) == since


@pytest.mark.xfail(strict=True, reason="issue: the monitor moves the time of one change with every later image")
def test_one_change_has_one_time() -> None:
    """Unknown images come from the 111th on, and more of them later: the alarm tells of the first change."""
    rng = np.random.default_rng(0)
    share = np.repeat([0.0, 0.25, 0.9], [110, 200, 300])
    scores = rng.normal(size=610) - 4.0 * (rng.random(610) < share)
    monitor = de.Monitor(make_detector(rng.normal(size=300)))
    monitor.observe(ids_of(310), labels_of(310), scores[:310])
    first = monitor.status.since
    assert first is not None and 90 <= first <= 140
    monitor.observe(ids_of(300, 310), labels_of(300), scores[310:])
    assert monitor.status.since == first
