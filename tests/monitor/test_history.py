"""What is remembered: blocks that merge, classes before and now."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.monitor.state import MOST_BLOCKS, ClassChange, FlaggedImage, History


def feed(history: History, entries: list[tuple[str, bool]]) -> None:
    for number, (label, flagged) in enumerate(entries, start=1):
        history.add(FlaggedImage(number, f"{number}.jpg", label, 0.0, True), flagged, float(number), 0.0, f"t{number}")


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


def test_the_last_rejected_images() -> None:
    history = History()
    feed(history, [("dog", i % 2 == 0) for i in range(200)])
    assert [seen.number for seen in history.flagged] == list(range(105, 200, 2))
