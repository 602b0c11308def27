"""Rows of a store against a plain dictionary, for any order of shards, copies and replaced images."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.store.folder import LocalPlace
from deltaenergy.store.manifest import StoreRecord, write_manifest
from deltaenergy.store.shards import Entry, write_shard
from deltaenergy.store.store import FeatureStore

DIMENSION = 3
# Each shard is a list of (image, picture); a picture stands for its content, None for one that cannot be read.
shards = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 4))),
        max_size=6,
        unique_by=lambda p: p[0],
    ),
    max_size=5,
)


def vector(picture: int, dtype: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values = np.random.default_rng(picture).standard_normal(DIMENSION)
    return values.astype(dtype).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(shards, st.sampled_from(["float32", "float16"]), st.data())
def test_rows(contents: list[list[tuple[str, int | None]]], dtype: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = []
        expected: dict[str, int | None] = {}
        seen: set[int] = set()
        for number, images in enumerate(contents):
            entries, rows = [], []
            for image, picture in images:
                row = None
                if picture is not None and picture not in seen:
                    row = len(rows)
                    rows.append(vector(picture, dtype))
                    seen.add(picture)
                error = "broken" if picture is None else None
                entries.append(Entry(image, None, None, None if picture is None else str(picture), "", row, error))
                expected[image] = picture
            array = np.array(rows, dtype).reshape(-1, DIMENSION)
            written.append(write_shard(LocalPlace(folder), number, entries, {"features": array}).record)
        record = StoreRecord({"name": "m", "fingerprint": "f"}, DIMENSION, False, dtype, 6, complete=True)
        write_manifest(LocalPlace(folder), record, written)
        store = FeatureStore.open(folder)
        readable = {image: picture for image, picture in expected.items() if picture is not None}
        assert store.ids == list(readable)
        assert [u.id for u in store.unreadable] == [image for image, picture in expected.items() if picture is None]
        assert [item.id for item in store.items()] == list(expected)
        matrix = np.array([vector(picture, dtype) for picture in readable.values()]).reshape(-1, DIMENSION)
        np.testing.assert_array_equal(store.features, matrix)
        size = data.draw(st.integers(1, 4))
        blocks = list(store.blocks(size))
        assert all(0 < len(block) <= size for block in blocks)
        np.testing.assert_array_equal(np.concatenate([matrix[:0], *blocks]), matrix)
        if len(readable) > 2:  # as many rows as a run from the first to the last would have
            np.testing.assert_array_equal(store.take([0, 0, 2]), matrix[[0, 0, 2]])
        if readable:
            chosen = data.draw(st.lists(st.integers(0, len(readable) - 1), max_size=8))
            np.testing.assert_array_equal(store.take(chosen), matrix[chosen])
