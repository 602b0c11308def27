"""No byte of a store changes unseen: flipped, cut, missing or tampered with, it is found, and never fewer rows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files.artifact import sealed
from deltaenergy.files.atomic import json_bytes
from deltaenergy.source import build_store
from deltaenergy.store.manifest import RECORD
from deltaenergy.store.store import FeatureStore, verify_store
from tests.data.colour_model import MeanColour
from tests.sampling import examples

IMAGES = 10


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(3)
    for i in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "4.png").write_bytes(b"no picture")
    shutil.copy(folder / "1.png", folder / "8.png")
    return folder


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three shards with patches, an unreadable picture and one that is there twice."""
    folder = tmp_path_factory.mktemp("stores") / "whole"
    build_store(MeanColour(), pictures, folder, shard_size=4, patches=True)
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def found(folder: Path) -> str | None:
    """The error that opening the store or reading all of it gives, or None."""
    try:
        verify_store(folder)
    except ArtifactError as error:
        return str(error)
    return None


# Any one change to any one file.

FILES = [RECORD, *(f"{i:05d}.{end}" for i in range(3) for end in ("features.npy", "patches.npy", "index.parquet"))]


@settings(max_examples=examples(250))
@given(st.sampled_from(FILES), st.integers(0, 1 << 30), st.integers(0, 7))
def test_a_flipped_bit_is_found(whole: Path, name: str, place: int, bit: int) -> None:
    path = whole / name
    before = path.read_bytes()
    data = bytearray(before)
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    try:
        assert name in str(found(whole))
        if not name.endswith(".npy"):  # all but the features is checked whenever the store is opened
            with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
                FeatureStore.open(whole)
    finally:
        path.write_bytes(before)
    assert found(whole) is None


@settings(max_examples=examples(200))
@given(st.sampled_from(FILES), st.integers(0, 1 << 30))
@example(RECORD, -1)
def test_a_cut_file_is_found_when_the_store_is_opened(whole: Path, name: str, length: int) -> None:
    path = whole / name
    before = path.read_bytes()
    path.write_bytes(before[: length % len(before)])
    try:
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            FeatureStore.open(whole)
    finally:
        path.write_bytes(before)


@settings(max_examples=examples(100))
@given(st.sampled_from(FILES), st.binary(min_size=1, max_size=40))
def test_a_longer_file_is_found_when_the_store_is_opened(whole: Path, name: str, more: bytes) -> None:
    path = whole / name
    before = path.read_bytes()
    path.write_bytes(before + more)
    try:
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            FeatureStore.open(whole)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["missing", "pipe", "folder"])
def test_a_file_that_is_not_there(store: Path, name: str, change: str) -> None:
    path = store / name
    path.unlink()
    if change == "pipe":
        os.mkfifo(path)
    elif change == "folder":
        path.mkdir()
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        FeatureStore.open(store)


@pytest.mark.parametrize("kind", ["features.npy", "patches.npy", "index.parquet"])
def test_files_of_two_shards_swapped(store: Path, kind: str) -> None:
    first, second = store / f"00000.{kind}", store / f"00001.{kind}"
    before = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(before)
    assert kind in str(found(store))


def test_verify_names_every_damaged_file(store: Path) -> None:
    opened = FeatureStore.open(store)
    for name in FILES:
        data = bytearray((store / name).read_bytes())
        data[-9] ^= 4
        (store / name).write_bytes(data)
    assert sorted(opened.verify()) == sorted(FILES)


# Repair.


def ids(pictures: Path, *numbers: int) -> list[str]:
    return [(pictures / f"{number}.png").as_posix() for number in numbers]


@pytest.mark.parametrize("change", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("shards", [[0], [1], [0, 2], [0, 1, 2]])
def test_a_damaged_index_is_made_anew_from_the_same_images(
    pictures: Path, store: Path, change: str, shards: list[int]
) -> None:
    before = contents(store)
    for shard in shards:
        index = store / f"{shard:05d}.index.parquet"
        data = index.read_bytes()
        index.unlink()
        if change != "missing":
            index.write_bytes(data[:-3] if change == "cut" else data[:40] + b"!" + data[41:])
    with pytest.warns(UserWarning, match=r"damaged.* encoded again"):
        build_store(MeanColour(), pictures, store)
    assert contents(store) == before


def test_other_damage_beside_a_damaged_index(pictures: Path, store: Path) -> None:
    before = contents(store)
    (store / "00001.index.parquet").unlink()
    (store / "00000.patches.npy").write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        build_store(MeanColour(), pictures, store)
    assert contents(store) == before


@pytest.mark.parametrize("given_now", [[], [5, 6], [4, 5, 6], [5, 4, 6, 7], [0, 1, 2, 3, 8, 9], [4, 5, 6, 99, 7]])
def test_a_damaged_index_is_no_reason_to_drop_images(pictures: Path, store: Path, given_now: list[int]) -> None:
    (store / "00001.index.parquet").write_bytes(b"")
    before = contents(store)
    with pytest.raises(ArtifactError, match=r"00001\.index\.parquet.* 4"):
        build_store(MeanColour(), ids(pictures, *given_now), store)
    assert contents(store) == before


def test_a_damaged_manifest_stops_a_run(pictures: Path, store: Path) -> None:
    (store / RECORD).write_bytes((store / RECORD).read_bytes()[:-1])
    before = contents(store)
    with pytest.raises(ArtifactError, match="changed after"):
        build_store(MeanColour(), pictures, store)
    (store / RECORD).unlink()
    with pytest.raises(InputError, match="holds no feature store"):
        build_store(MeanColour(), pictures, store)
    assert {**contents(store), RECORD: before[RECORD]} == before


# A manifest that somebody changed and sealed again: every value is checked for itself.


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = to

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        del values[path[-1]]

    return change


WRONG = {
    "model": [_set("model", to=[]), _drop("model")],
    "model.name": [_set("model", "name", to=3), _drop("model", "name")],
    "model.fingerprint": [_set("model", "fingerprint", to=None), _drop("model", "fingerprint")],
    "feature_dim": [_set("feature_dim", to=value) for value in (0, -3, 3.0, "3", True, None)],
    "patches": [_set("patches", to=value) for value in (0, "yes", None)],
    "dtype": [_set("dtype", to=value) for value in ("float64", "", 32)],
    "shard_size": [_set("shard_size", to=value) for value in (0, -1, 2.5, 10**30)],
    "complete": [_set("complete", to=value) for value in (1, "true", None)],
    "shards": [_set("shards", to=value) for value in ({}, None, "x")] + [_drop("shards")],
    "shards[0]": [_set("shards", 0, to=value) for value in (None, [], 3)],
    "shards[1].number": [_set("shards", 1, "number", to=value) for value in (-1, 1.5, "1")],
    "shards[0].images": [_set("shards", 0, "images", to=value) for value in (-1, None)],
    "shards[0].rows": [_set("shards", 0, "rows", to=value) for value in (-1, "4")],
    "shards[1].unreadable": [_set("shards", 1, "unreadable", to=value) for value in (-1, "2")],
    "shards[0].ids": [_set("shards", 0, "ids", to=value) for value in ("", "xyz", 3)],
    "shards[0].files": [_drop("shards", 0, "files", "index"), _set("shards", 0, "files", to=[])],
    "shards[0].files.features.bytes": [
        _set("shards", 0, "files", "features", "bytes", to=value) for value in (0, -1, "176")
    ],
    "shards[0].files.index.checksum": [
        _set("shards", 0, "files", "index", "checksum", to=value) for value in ("", "0" * 31, "Z" * 32, None)
    ],
    "shards[0].more": [_set("shards", 0, "more", to=1)],
    "more": [_set("more", to=1)],
}
CASES = [(entry, change) for entry, changes in WRONG.items() for change in changes]


@pytest.mark.parametrize(("entry", "change"), CASES, ids=[f"{i}-{entry}" for i, (entry, _) in enumerate(CASES)])
def test_each_entry_of_the_manifest_is_checked(store: Path, entry: str, change: Callable[[Any], None]) -> None:
    values = json.loads((store / RECORD).read_text())
    change(values)
    (store / RECORD).write_bytes(json_bytes(sealed(values)))
    with pytest.raises(ArtifactError) as caught:
        FeatureStore.open(store)
    message = str(caught.value)
    assert RECORD in message
    assert entry in message


@pytest.mark.parametrize(
    "change",
    [
        _set("shards", 2, "rows", to=0),
        _set("shards", 1, "files", "features", "bytes", to=200),
        _set("shards", 1, "files", "features", "checksum", to="0" * 32),
        _set("feature_dim", to=4),
        _set("dtype", to="float16"),
        lambda values: values["shards"].pop(0),
    ],
)
def test_what_does_not_fit_together_is_found(store: Path, change: Callable[[Any], object]) -> None:
    values = json.loads((store / RECORD).read_text())
    change(values)
    (store / RECORD).write_bytes(json_bytes(sealed(values)))
    with pytest.raises(ArtifactError):
        _ = verify_store(store).features


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(200))
@given(json_values, st.data())
def test_any_value_anywhere_is_refused_or_right(whole: Path, value: Any, data: st.DataObject) -> None:
    """Whatever stands in the manifest, the outcome is an `ArtifactError` or the same rows as before."""
    before = (whole / RECORD).read_bytes()
    features = np.array(FeatureStore.open(whole).features)
    values = json.loads(before)
    target = values
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else list(range(len(target)))))
        if not isinstance(target[key], dict | list) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    # A list without its end, sealed again, is what an earlier run may have written: only the writer could tell.
    assume(target is not values or key != "shards" or value != [])
    target[key] = value
    try:
        (whole / RECORD).write_bytes(json_bytes(sealed(values)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may say that it is not finished
            opened = verify_store(whole)
            np.testing.assert_array_equal(opened.features, features)
    except ArtifactError:
        pass
    except UnicodeEncodeError:
        pass  # half a surrogate pair, which json.dumps writes and nobody reads
    finally:
        (whole / RECORD).write_bytes(before)


# An index that somebody rewrote, with checksums that fit.


def _rewrite(store: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    index = store / "00000.index.parquet"
    table = pq.read_table(index)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), index)
    values = json.loads((store / RECORD).read_text())
    data = index.read_bytes()
    checksum = hashlib.blake2b(data, digest_size=16).hexdigest()
    values["shards"][0]["files"]["index"] = {"bytes": len(data), "checksum": checksum}
    (store / RECORD).write_bytes(json_bytes(sealed(values)))


def test_a_picture_that_no_shard_holds(store: Path) -> None:
    """8.png shares the features of 1.png. Without them a finished store does not call it unreadable: it is damaged."""

    def change(columns: dict[str, list[Any]]) -> None:
        columns["content"][1] = "0" * 32

    _rewrite(store, change)
    with pytest.raises(ArtifactError, match=r"8\.png"):
        FeatureStore.open(store)


def test_a_store_of_another_format_is_refused_and_left_alone(store: Path, pictures: Path) -> None:
    values = json.loads((store / RECORD).read_text())
    del values["shards"], values["checksum"]
    (store / RECORD).write_text(json.dumps({**values, "format": "deltaenergy feature store 1"}))
    before = contents(store)
    for call in (lambda: FeatureStore.open(store), lambda: build_store(MeanColour(), pictures, store)):
        with pytest.raises(ArtifactError, match="`deltaenergy features`"):
            call()
    assert contents(store) == before


# What is not ours.


@pytest.fixture
def strange(store: Path) -> Iterator[dict[str, bytes]]:
    """Files of a user in the store's folder, some of them called nearly like ours."""
    names = ["notes.txt", ".mine.part", ".00000.features.npy.part", ".deltaenergy-1-2.part", "00009.features.npy"]
    names += [".deltaenergy-0a1b2c3d-99-0a1b2c3d.part", "store.json.bak", "7.index.parquet"]
    for name in names:
        (store / name).write_bytes(name.encode())
    yield {name: name.encode() for name in names}


def test_a_run_touches_nothing_that_is_not_ours(strange: dict[str, bytes], store: Path, pictures: Path) -> None:
    (store / "00001.features.npy").unlink()
    with pytest.warns(UserWarning, match="damaged"):
        build_store(MeanColour(), pictures, store)
    assert strange.items() <= contents(store).items()


def test_what_a_killed_run_left_is_removed(store: Path, whole: Path, pictures: Path) -> None:
    import subprocess
    import sys

    # A process that is killed while it writes leaves its temporary folder.
    program = (
        "import os, sys; from deltaenergy.files.atomic import temporary_folder\n"
        "with temporary_folder(__import__('pathlib').Path(sys.argv[1])) as t:\n"
        "    (t / '00000.features.npy').write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(store)], timeout=300)
    assert len(list(store.glob(".deltaenergy-*.part"))) == 1
    build_store(MeanColour(), pictures, store)
    assert contents(store) == contents(whole)
