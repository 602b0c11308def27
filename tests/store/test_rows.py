"""Rows of a store against a plain list, for any shards and any choice of rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.errors import InputError
from deltaenergy.store.folder import LocalFolder
from deltaenergy.store.shard import INDEX, MANIFEST, Manifest, pack_shard
from deltaenergy.store.store import Store

DIMENSION, PATCHES = 3, 2
# Each shard is a list of images; None is one that cannot be read.
shards = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=1, max_size=6), max_size=5)


def numbers(image: int | None, dtype: str, *shape: int) -> np.ndarray:
    if image is None:
        return np.zeros(shape, dtype)
    return np.random.default_rng(image).standard_normal(shape).astype(dtype)


def write(folder: Path, contents: list[list[int | None]], dtype: str) -> Store:
    records, count = [], 0
    for number, images in enumerate(contents):
        ids = [f"image {count + i}" for i in range(len(images))]
        errors = [None if image is not None else "broken" for image in images]
        columns = [ids, [None, "a"] * 3, [None] * 6, ids, ids, errors]
        index = pa.table([pa.array(column[: len(images)], pa.string()) for column in columns], names=INDEX)
        arrays = {
            "features": np.array([numbers(image, dtype, DIMENSION) for image in images]),
            "patches": np.array([numbers(image, dtype, PATCHES, DIMENSION) for image in images]),
        }
        record, data = pack_shard(number, 1, 0, index, arrays)
        LocalFolder(folder).put(record.name, data)
        records.append(record)
        count += len(images)
    model = {"name": "m", "fingerprint": "f"}
    manifest = Manifest(model, DIMENSION, True, dtype, 6, 32, True, 1, tuple(records))
    LocalFolder(folder).put(MANIFEST, manifest.to_bytes())
    return Store.open(folder)


@settings(max_examples=60, deadline=None)
@given(shards, st.sampled_from(["float32", "float16"]), st.data())
def test_rows(contents: list[list[int | None]], dtype: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = write(Path(name), contents, dtype)
        images = [image for shard in contents for image in shard]
        readable = [row for row, image in enumerate(images) if image is not None]
        assert store.ids == [f"image {row}" for row in range(len(images))]
        assert store.readable.tolist() == readable
        assert [u.id for u in store.unreadable] == [f"image {row}" for row in range(len(images)) if images[row] is None]
        assert [item.id for item in store.items()] == store.ids
        assert store.verify() == []
        matrix = np.array([numbers(image, dtype, DIMENSION) for image in images]).reshape(-1, DIMENSION)
        np.testing.assert_array_equal(store.features(readable), matrix[readable].astype(np.float32))
        parts = list(store.shards(patches=True))
        assert [row for part in parts for row in part.rows] == readable
        for part in parts:
            np.testing.assert_array_equal(part.features, matrix[part.rows])
            assert part.patches is not None
            np.testing.assert_array_equal(part.patches, store.patches(part.rows).reshape(part.patches.shape))
        if len(readable) > 2:  # as many rows as a run from the first to the last would have
            chosen = [readable[0], readable[0], readable[2]]
            np.testing.assert_array_equal(store.features(chosen), matrix[chosen])
        chosen = data.draw(st.lists(st.sampled_from(range(len(images))), max_size=8)) if images else []
        if all(images[row] is not None for row in chosen):
            np.testing.assert_array_equal(store.features(chosen), matrix[chosen].astype(np.float32))
            patches = np.array([numbers(images[row], dtype, PATCHES, DIMENSION) for row in chosen])
            np.testing.assert_array_equal(store.patches(chosen).reshape(patches.shape), patches)
        else:
            with pytest.raises(InputError, match="broken"):
                store.features(chosen)
