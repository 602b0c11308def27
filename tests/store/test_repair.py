"""Damaged shards are encoded again: the same bytes, from the same images, and nothing is dropped unseen."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deltaenergy import Model, Store, build_store, repair_store
from deltaenergy.errors import ArtifactError
from deltaenergy.store.folder import LocalFolder
from deltaenergy.store.shard import read_manifest
from tests.data.colour_model import MeanColour
from tests.store.shards import contents, draw_images

IMAGES = 10
SHARDS = [f"{number:05d}-1.arrow" for number in range(3)]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Ten images in three shards: the fifth cannot be read, the ninth is the second again."""
    names = [f"{i}.png" for i in range(IMAGES)]
    return draw_images(tmp_path / "pictures", names, unreadable="4.png", copies={"8.png": "1.png"})


@pytest.fixture
def store(pictures: Path, tmp_path: Path) -> Path:
    build_store(MeanColour(), pictures, tmp_path / "store", shard_size=4, patches=True)
    return tmp_path / "store"


def damage(store: Path, name: str, change: str) -> None:
    """Flip a bit in a shard's features, or harm its index, or remove it."""
    record = next(record for record in read_manifest(LocalFolder(store))[0].shards if record.name == name)
    data = bytearray((store / name).read_bytes())
    (store / name).unlink()
    if change == "features":
        data[record.start + 1] ^= 4
    elif change == "index":
        data[record.start - 9] ^= 4
    elif change == "cut":
        del data[-3:]
    if change != "missing":
        (store / name).write_bytes(data)


def test_a_sound_store_is_left_alone(store: Path, pictures: Path) -> None:
    before = contents(store)
    assert repair_store(store, pictures, model=MeanColour()) == []
    assert contents(store) == before


@pytest.mark.parametrize("change", ["features", "index", "cut", "missing"])
@pytest.mark.parametrize("shards", [[0], [1], [0, 2], [0, 1, 2]])
def test_damaged_shards_get_their_bytes_back(pictures: Path, store: Path, change: str, shards: list[int]) -> None:
    before = contents(store)
    for number in shards:
        damage(store, SHARDS[number], change)
    assert repair_store(store, pictures, model=MeanColour()) == [SHARDS[number] for number in shards]
    assert contents(store) == before
    assert repair_store(store, pictures, model=MeanColour()) == []


def test_an_index_and_features_of_another_shard(pictures: Path, store: Path) -> None:
    before = contents(store)
    damage(store, SHARDS[0], "features")
    damage(store, SHARDS[1], "index")
    repair_store(store, pictures, model=MeanColour())
    assert contents(store) == before


def test_copies_are_taken_from_where_they_were_taken(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    """Copies in shards of one run were encoded each for itself; those of what the store had before were not.

    A batch rounds otherwise without one of its images, so that the bytes tell.
    """
    shutil.copy(photos / "cat" / "0.png", photos / "dog" / "copy of one run.png")
    store = tmp_path / "store"
    build_store(tiny_clip, photos, store, shard_size=4)
    shutil.copytree(photos / "cat", photos / "more")
    shutil.copy(photos / "dog" / "3.png", photos / "more" / "9.png")
    Image.new("RGB", (40, 40), "red").save(photos / "more" / "new.png")
    build_store(tiny_clip, photos, store)
    before = contents(store)
    for record in Store.open(store).manifest.shards:
        damage(store, record.name, "features")
        assert repair_store(store, photos, model=tiny_clip) == [record.name]
        assert contents(store) == before


def test_a_shard_that_was_written_again_is_repaired_to_equal_rows(
    tiny_clip: Model, photos: Path, tmp_path: Path
) -> None:
    """Its images are encoded in other batches than before: equal within rounding, and the manifest says so."""
    store = tmp_path / "store"
    build_store(tiny_clip, photos, store, shard_size=4)
    Image.new("RGB", (40, 40), "red").save(photos / "cat" / "1.png")
    changed = build_store(tiny_clip, photos, store)
    features = changed.features().copy()
    name = changed.manifest.shards[0].name
    assert name == "00000-2.arrow"
    damage(store, name, "index")
    assert repair_store(store, photos, model=tiny_clip) == [name]
    found = Store.open(store)
    assert (found.ids, found.verify()) == (changed.ids, [])
    np.testing.assert_allclose(found.features(), features, atol=1e-6)


def test_images_that_have_changed_are_repaired_as_they_are_now(pictures: Path, store: Path) -> None:
    Image.new("RGB", (8, 8), "blue").save(pictures / "5.png")
    damage(store, SHARDS[1], "features")
    repair_store(store, pictures, model=MeanColour())
    found = Store.open(store)
    np.testing.assert_allclose(found.features([5]), [[0, 0, 1]])
    assert found.verify() == []
    os.utime(store)
    before = contents(store)
    build_store(MeanColour(), pictures, store)
    assert contents(store) == before, "nothing is left to be done"


def ids(pictures: Path, *numbers: int) -> list[str]:
    return [(pictures / f"{number}.png").as_posix() for number in numbers]


@pytest.mark.parametrize("given", [[], [0, 1, 2, 3], [4, 5, 6, 8]])
def test_images_of_a_damaged_shard_that_are_not_given_are_not_dropped(
    pictures: Path, store: Path, given: list[int]
) -> None:
    damage(store, SHARDS[1], "features")
    before = contents(store)
    with pytest.raises(ArtifactError, match=r"00001-1\.arrow"):
        repair_store(store, ids(pictures, *given), model=MeanColour())
    assert contents(store) == before


@pytest.mark.parametrize("given", [[], [5, 6], [4, 5, 6], [5, 4, 6, 7], [0, 1, 2, 3, 8, 9], [4, 5, 6, 99, 7]])
def test_a_damaged_index_is_no_reason_to_drop_images(pictures: Path, store: Path, given: list[int]) -> None:
    """Without the names only their hash tells whether these are the images, in the same order."""
    damage(store, SHARDS[1], "index")
    before = contents(store)
    with pytest.raises(ArtifactError, match=r"00001-1\.arrow.* 4"):
        repair_store(store, ids(pictures, *given), model=MeanColour())
    assert contents(store) == before


def test_another_model_is_refused(tiny_clip: Model, pictures: Path, store: Path) -> None:
    with pytest.raises(ArtifactError, match="different model"):
        repair_store(store, pictures, model=tiny_clip)


def test_images_in_memory(tmp_path: Path) -> None:
    given: list[Any] = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    build_store(MeanColour(), given, tmp_path / "store", shard_size=2)
    before = contents(tmp_path / "store")
    damage(tmp_path / "store", "00000-1.arrow", "index")
    repair_store(tmp_path / "store", given, model=MeanColour())
    assert contents(tmp_path / "store") == before
