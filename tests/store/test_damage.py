"""No byte of a store changes unseen: flipped, cut, missing or tampered with, it is found, and never fewer rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files.artifact import CHECKSUM, json_with_checksum
from deltaenergy.scale.build import build_store
from deltaenergy.store.shard import MANIFEST, ShardRecord
from deltaenergy.store.store import Store
from tests.data.colour_model import MeanColour
from tests.sampling import examples
from tests.store.shards import contents

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


def found(folder: Path) -> str | None:
    """What opening the store, or reading all of it, finds wrong; None if it is sound."""
    try:
        return "; ".join(Store.open(folder).verify()) or None
    except ArtifactError as error:
        return str(error)


def record_of(folder: Path, name: str) -> ShardRecord:
    return next(record for record in Store.open(folder).manifest.shards if record.name == name)


# Any one change to any one file.

SHARDS = [f"{number:05d}-1.arrow" for number in range(3)]
FILES = [MANIFEST, *SHARDS]


@settings(max_examples=examples(250))
@given(st.sampled_from(FILES), st.integers(0, 1 << 30), st.integers(0, 7))
def test_a_flipped_bit_is_found(whole: Path, name: str, place: int, bit: int) -> None:
    path = whole / name
    before = path.read_bytes()
    data = bytearray(before)
    place %= len(data)
    in_features = name != MANIFEST and record_of(whole, name).start <= place < record_of(whole, name).stop
    data[place] ^= 1 << bit
    path.write_bytes(data)
    try:
        assert name in str(found(whole))
        if not in_features:  # all but the features is checked whenever the store is opened
            with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
                Store.open(whole)
    finally:
        path.write_bytes(before)
    assert found(whole) is None


def test_bytes_of_an_index_are_compared_before_they_are_parsed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    opened = Store.open(store)
    data = bytearray((store / SHARDS[1]).read_bytes())
    data[-20] ^= 1
    (store / SHARDS[1]).write_bytes(data)

    def parsed(*_: Any, **__: Any) -> None:
        raise AssertionError("damaged bytes are parsed")

    monkeypatch.setattr(pa.ipc, "open_file", parsed)
    for call in (lambda: Store.open(store), lambda: opened.features([5]), lambda: opened.shard(1)):
        with pytest.raises(ArtifactError, match=SHARDS[1]):
            call()
    assert opened.verify() != []


@settings(max_examples=examples(200))
@given(st.sampled_from(FILES), st.integers(0, 1 << 30))
@example(MANIFEST, -1)
def test_a_cut_file_is_found_when_the_store_is_opened(whole: Path, name: str, length: int) -> None:
    path = whole / name
    before = path.read_bytes()
    path.write_bytes(before[: length % len(before)])
    try:
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            Store.open(whole)
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
            Store.open(whole)
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
        Store.open(store)


def test_files_of_two_shards_swapped(store: Path) -> None:
    first, second = store / SHARDS[0], store / SHARDS[1]
    before = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(before)
    assert SHARDS[0] in str(found(store))


def test_verify_names_every_damaged_file(store: Path) -> None:
    opened = Store.open(store)
    for name in FILES:
        data = bytearray((store / name).read_bytes())
        data[-9] ^= 4
        (store / name).write_bytes(data)
    assert sorted(line.partition(":")[0] for line in opened.verify()) == sorted(FILES)


def test_a_run_does_not_read_what_it_need_not(store: Path, pictures: Path, tmp_path: Path) -> None:
    """Features are compared with their hash when that is asked for, not whenever images are added."""
    record = record_of(store, SHARDS[1])
    data = bytearray((store / record.name).read_bytes())
    data[record.start] ^= 1
    (store / record.name).write_bytes(data)
    Image.new("RGB", (8, 8), "red").save(tmp_path / "new.png")
    added = build_store(MeanColour(), [*sorted(pictures.iterdir()), tmp_path / "new.png"], store)
    assert len(added) == IMAGES + 1
    assert [line.partition(":")[0] for line in added.verify()] == [record.name]


@pytest.mark.parametrize("change", ["cut", "index"])
def test_what_a_run_finds_damaged_stops_it(store: Path, pictures: Path, change: str) -> None:
    data = bytearray((store / SHARDS[1]).read_bytes())
    if change == "cut":
        del data[-40:]
    else:
        data[40] ^= 1
    (store / SHARDS[1]).write_bytes(data)
    before = contents(store)
    with pytest.raises(ArtifactError, match=r"00001-1\.arrow.*repair"):
        build_store(MeanColour(), pictures, store)
    assert contents(store) == before


def test_a_damaged_manifest_stops_a_run(pictures: Path, store: Path) -> None:
    (store / MANIFEST).write_bytes((store / MANIFEST).read_bytes()[:-1])
    before = contents(store)
    with pytest.raises(ArtifactError, match="damaged"):
        build_store(MeanColour(), pictures, store)
    (store / MANIFEST).unlink()
    with pytest.raises(InputError, match="not a feature store"):
        build_store(MeanColour(), pictures, store)
    assert {**contents(store), MANIFEST: before[MANIFEST]} == before


# A manifest that somebody changed, with a checksum that fits: every value is checked for its type and range.


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
    "batch_size": [_set("batch_size", to=value) for value in (0, -1, "32")],
    "version": [_set("version", to=value) for value in (-1, None)],
    "shards[0].held": [_set("shards", 0, "held", to=value) for value in (-1, "4")],
    "shards[2].version": [_set("shards", 2, "version", to=value) for value in (0, 1.5)],
    "shards[0].start": [_set("shards", 0, "start", to=value) for value in (-1, "4")] + [_drop("shards", 0, "start")],
    "shards[1].unreadable": [_set("shards", 1, "unreadable", to=value) for value in (-1, "2")],
    "shards[0].ids": [_set("shards", 0, "ids", to=value) for value in ("", "xyz", 3)],
    "shards[0].bytes": [_set("shards", 0, "bytes", to=value) for value in (0, -1, "176")],
    "shards[0].index_hash": [_set("shards", 0, "index_hash", to=value) for value in ("", "0" * 31, "Z" * 32, None)],
    "shards[0].more": [_set("shards", 0, "more", to=1)],
    "more": [_set("more", to=1)],
}
CASES = [(entry, change) for entry, changes in WRONG.items() for change in changes]


@pytest.mark.parametrize(("entry", "change"), CASES, ids=[f"{i}-{entry}" for i, (entry, _) in enumerate(CASES)])
def test_each_entry_of_the_manifest_is_checked(store: Path, entry: str, change: Callable[[Any], None]) -> None:
    values = manifest_of(store)
    change(values)
    (store / MANIFEST).write_bytes(json_with_checksum(values))
    with pytest.raises(ArtifactError) as caught:
        Store.open(store)
    message = str(caught.value)
    assert MANIFEST in message
    assert entry in message


def manifest_of(store: Path) -> dict[str, Any]:
    """The manifest without its checksum."""
    values: dict[str, Any] = json.loads((store / MANIFEST).read_text())
    del values[CHECKSUM]
    return values


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(200))
@given(json_values, st.data())
def test_any_value_anywhere_is_refused_or_right(whole: Path, value: Any, data: st.DataObject) -> None:
    """Whatever stands in the manifest, the outcome is an `ArtifactError` or the same rows as before."""
    before = (whole / MANIFEST).read_bytes()
    store = Store.open(whole)
    features = store.features(store.readable)
    values = manifest_of(whole)
    target = values
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else list(range(len(target)))))
        if not isinstance(target[key], dict | list) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    # A list without its end is what an earlier run may have written: only the writer could tell.
    assume(target is not values or key != "shards" or value != [])
    target[key] = value
    try:
        (whole / MANIFEST).write_bytes(json_with_checksum(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may say that it is incomplete
            opened = Store.open(whole)
            if not opened.verify():
                np.testing.assert_array_equal(opened.features(opened.readable), features)
    except ArtifactError:
        pass
    except UnicodeEncodeError:
        pass  # half a surrogate pair, which json.dumps writes and nobody reads
    finally:
        (whole / MANIFEST).write_bytes(before)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_another_format_is_refused_and_left_alone(store: Path, pictures: Path, version: int) -> None:
    values = {**manifest_of(store), "format": f"deltaenergy feature store {version}"}
    (store / MANIFEST).write_text(json.dumps(values))
    before = contents(store)
    for call in (lambda: Store.open(store), lambda: build_store(MeanColour(), pictures, store)):
        with pytest.raises(ArtifactError, match="`deltaenergy features`"):
            call()
    assert contents(store) == before


# What is not ours.


def test_a_run_touches_nothing_that_is_not_ours(tmp_path: Path, pictures: Path) -> None:
    pictures = Path(shutil.copytree(pictures, tmp_path / "pictures"))
    store = tmp_path / "store"
    build_store(MeanColour(), pictures, store, shard_size=4)
    names = ["notes.txt", ".mine.part", ".00000-1.arrow.part", ".deltaenergy-1-2.part", "00009-1.arrow"]
    names += [".deltaenergy-0a1b2c3d-99-0a1b2c3d.part", "store.json.bak", "7-1.arrow", "00000-0.arrow.bak"]
    strange = {name: name.encode() for name in names}
    for name, data in strange.items():
        (store / name).write_bytes(data)
    Image.new("RGB", (8, 8), "red").save(pictures / "4.png")
    assert build_store(MeanColour(), pictures, store).unreadable == []
    assert strange.items() <= contents(store).items()


def killed_while_it_writes(store: Path) -> None:
    """A process that is killed leaves its temporary folder."""
    program = (
        "import os, sys; from deltaenergy.files.atomic import temporary_folder\n"
        "with temporary_folder(__import__('pathlib').Path(sys.argv[1])) as t:\n"
        "    (t / '00000-1.arrow').write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(store)], timeout=300)
    assert len(list(store.glob(".deltaenergy-*.part"))) == 1


def test_what_a_killed_run_left_is_removed(store: Path, whole: Path, pictures: Path) -> None:
    killed_while_it_writes(store)
    build_store(MeanColour(), pictures, store)
    assert contents(store) == contents(whole)


def test_what_a_killed_worker_left_is_removed_by_the_run_itself(tmp_path: Path, whole: Path, pictures: Path) -> None:
    class Killed(MeanColour):
        def encode(self, images: Any, **how: Any) -> Any:
            if not list(tmp_path.glob("store/*.arrow")):
                killed_while_it_writes(tmp_path / "store")
            return super().encode(images, **how)

    build_store(Killed(), pictures, tmp_path / "store", shard_size=4, patches=True)
    assert contents(tmp_path / "store") == contents(whole)
