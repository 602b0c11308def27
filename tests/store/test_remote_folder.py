"""Feature stores on an object store: the same bytes as on disk, after whatever happened on the way."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltaenergy.data.file import RemoteFile
from deltaenergy.data.items import ImageItem, from_reference, to_reference
from deltaenergy.data.remote.client import Connections, open_bucket, use_connections
from deltaenergy.data.remote.errors import RequestLimits
from deltaenergy.errors import ArtifactError, InputError, UnreachableError
from deltaenergy.source import build_store, load_images
from deltaenergy.store.folder import place_at
from deltaenergy.store.manifest import is_store, read_manifest
from deltaenergy.store.remote_folder import RemotePlace
from deltaenergy.store.shards import read_shards
from deltaenergy.store.store import FeatureStore, verify_store
from deltaenergy.store.store_pass import names_a_store
from tests.cli.runner import Runner
from tests.clouds import S3Bucket as Bucket
from tests.clouds import store_error
from tests.data.archives import picture_bytes
from tests.data.colour_model import MeanColour
from tests.data.conftest import IMPATIENT
from tests.servers import Answer, FaultyServer

PICTURES = {f"{i}.png": picture_bytes("PNG", i) for i in range(5)} | {
    "copy.png": picture_bytes("PNG", 3),
    "x.png": b"?",
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven pictures in a folder: two are equal, one is broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in PICTURES.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def expected(photos: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the store that is made of them on disk."""
    build_store(MeanColour(), photos, tmp_path / "local", shard_size=2)
    files = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir() if path.suffix != ".lock"}
    return {name: data for name, data in files.items() if not name.startswith(".")}


def contents(bucket: Bucket, folder: str = "store/") -> dict[str, bytes]:
    return {key.removeprefix(folder): bucket.get(key) for key in bucket.list() if key.startswith(folder)}


def build(bucket: Bucket, photos: Any, **options: Any) -> FeatureStore:
    return build_store(MeanColour(), photos, f"{bucket.url}/store", shard_size=2, **options)


def test_the_same_bytes_as_on_disk(bucket: Bucket, photos: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    store = build(bucket, photos)
    assert contents(bucket) == expected
    local = FeatureStore.open(tmp_path / "local")
    assert (store.ids, store.unreadable, store.path) == (local.ids, local.unreadable, f"{bucket.url}/store")
    np.testing.assert_array_equal(store.features, local.features)
    np.testing.assert_array_equal(store.take([4, 0, 2]), local.features[[4, 0, 2]])
    np.testing.assert_array_equal(np.concatenate(list(store.blocks(2))), local.features)
    assert verify_store(f"{bucket.url}/store/").ids == local.ids
    assert [item.id for item in load_images(f"{bucket.url}/store")] == [item.id for item in local.items()]
    assert names_a_store(f"{bucket.url}/store/") and not is_store(f"{bucket.url}/elsewhere")


def test_a_second_run_changes_nothing_and_adds_what_is_new(bucket: Bucket, photos: Path) -> None:
    build(bucket, photos)
    before = contents(bucket)
    build(bucket, photos)
    assert contents(bucket) == before
    (photos / "new.png").write_bytes(picture_bytes("PNG", 9))
    assert len(build(bucket, photos).ids) == 7
    assert before.items() - {("store.json", before["store.json"])} <= contents(bucket).items()


class _Watched:
    """The store with something that happens before and after each request of some kinds."""

    def __init__(self, store: Any, kinds: set[str], happens: Callable[[str, str], None]) -> None:
        self._store, self._kinds, self._happens = store, kinds, happens

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name not in self._kinds:
            return value

        def request(key: str, *arguments: Any, **options: Any) -> Any:
            self._happens("before", key)
            result = value(key, *arguments, **options)
            self._happens("after", key)
            return result

        return request


CHANGES = {"put", "delete"}


def watch(kinds: set[str], happens: Callable[[str, str], None]) -> None:
    def opener(scheme: str, name: str, limits: RequestLimits) -> Any:
        return _Watched(open_bucket(scheme, name, limits), kinds, happens)

    use_connections(Connections(IMPATIENT, opener=opener))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.campaign)])
def test_killed_at_moments_and_gone_on_with(
    every: int, bucket: Bucket, photos: Path, expected: dict[str, bytes]
) -> None:
    """After each change to the store: what the next run ends with is what an undisturbed one makes."""
    kill_at = 0
    counter = itertools.count(1)

    def happens(when: str, _: str) -> None:
        if when == "after" and next(counter) == kill_at:
            raise Killed

    watch(CHANGES, happens)
    kills = 0
    for kill_at in itertools.count(1, every):
        bucket.clear()
        counter = itertools.count(1)
        try:
            build(bucket, photos)
        except Killed:
            kills += 1
        else:
            break
        build(bucket, photos)
        assert contents(bucket) == expected, kill_at
    assert kills == math.ceil(
        15 / every
    )  # the manifest three times, the plan's two files, four shards' two, and the plan's end


def test_a_lost_store_is_a_clear_error_and_the_next_run_goes_on(
    bucket: Bucket, photos: Path, expected: dict[str, bytes]
) -> None:
    counter, lost = itertools.count(), True

    def happens(when: str, _: str) -> None:
        if lost and when == "before" and next(counter) > 8:
            raise UnreachableError(f"{bucket.url} cannot be reached")

    watch(CHANGES, happens)
    with pytest.raises(UnreachableError, match=f"{bucket.url} cannot be reached"):
        build(bucket, photos)
    lost = False
    with pytest.warns(UserWarning, match="not finished"):
        part = FeatureStore.open(f"{bucket.url}/store")
    assert 0 < len(part.ids) < 6
    assert [image.id.rpartition("/")[2] for image in part.unreadable] in ([], ["x.png"])
    build(bucket, photos)
    assert contents(bucket) == expected


def test_an_answer_that_is_lost_on_its_way_changes_nothing(
    bucket: Bucket, photos: Path, expected: dict[str, bytes]
) -> None:
    """What was put is there, though nobody was told: the next attempt, or the next run, finds it."""
    counter = itertools.count()
    bucket.front.loses = lambda method, path: method in {"PUT", "DELETE"} and next(counter) % 3 == 0
    for _ in range(20):
        try:
            build(bucket, photos)
        except UnreachableError:
            continue
        break
    assert contents(bucket) == expected


def test_two_runs_with_one_plan_end_with_the_same_bytes(
    bucket: Bucket, photos: Path, expected: dict[str, bytes]
) -> None:
    """A second run starts in the middle of the first, and is done before it."""
    nested: list[FeatureStore] = []

    def progress(done: int, total: int | None) -> None:
        if done >= 2 and not nested:
            nested.append(build(bucket, photos))

    store = build(bucket, photos, progress=progress)
    assert contents(bucket) == expected and nested[0].ids == store.ids


def test_a_shard_is_put_only_where_none_is(bucket: Bucket) -> None:
    place = place_at(f"{bucket.url}/store/")
    assert isinstance(place, RemotePlace) and str(place) == place.address == f"{bucket.url}/store"
    assert place.publish("a", b"first") == b"first"
    assert place.publish("a", b"second") == b"first"
    place.replace("a", b"third")
    assert place.read("a") == b"third" == bucket.get("store/a")
    place.replace("b", b"")
    assert place.read("b") == b"" and place.size("b") == 0
    assert sorted(place.names()) == ["a", "b"] and place.names("plan") == []
    place.replace("plan/x", b"1")
    assert sorted(place.names()) == ["a", "b", "plan"] and place.names("plan") == ["x"]
    place.remove("a")
    place.remove("a")
    assert not place.has("a") and place.why_not("a") == "nothing is at this URL"
    with pytest.raises(OSError, match="nothing is at this URL"):
        place.read("a")


def test_damage_is_found_and_mended(bucket: Bucket, photos: Path, expected: dict[str, bytes]) -> None:
    build(bucket, photos)
    data = bytearray(expected["00001.features.npy"])
    data[-1] ^= 1
    bucket.put({"store/00001.features.npy": bytes(data)})
    with pytest.raises(ArtifactError, match=r"00001\.features\.npy"):
        verify_store(f"{bucket.url}/store")
    with pytest.warns(UserWarning, match="damaged"):
        build(bucket, photos)
    assert contents(bucket) == expected
    bucket.put({"store/00000.index.parquet": b"short"})
    with pytest.raises(ArtifactError, match="has 5 bytes"):
        FeatureStore.open(f"{bucket.url}/store")


def test_few_arrays_are_kept(bucket: Bucket, photos: Path) -> None:
    asked: list[str] = []
    watch({"get"}, lambda when, key: asked.append(key) if when == "before" else None)
    store = build(bucket, photos)
    asked.clear()
    whole = store.take(range(6))
    assert len(asked) == len(set(asked)) == 3
    store.take(range(6))
    assert len(asked) == 3
    with pytest.raises(ValueError, match="read-only"):
        store.take([0, 1])[0, 0] = 1
    place = RemotePlace(f"{bucket.url}/store", kept_bytes=1)
    manifest = read_manifest(place)
    store = FeatureStore(place, manifest.record, read_shards(place, manifest))
    asked.clear()
    np.testing.assert_array_equal(np.concatenate(list(store.blocks(1))), whole)
    # The last row is a copy of a picture in the second shard.
    assert [url[-len("1.features.npy")] for url in asked if url.endswith(".npy")] == ["0", "1", "2", "1"]


def test_pictures_and_store_at_addresses(bucket: Bucket, photos: Path) -> None:
    """Each picture is fetched once, though it is hashed and encoded; a changed one is encoded again."""
    bucket.put({f"photos/{name}": data for name, data in PICTURES.items()})
    store = build(bucket, f"{bucket.url}/photos/")
    np.testing.assert_array_equal(store.features, build_store(MeanColour(), photos, photos / "here").features)
    bucket.put({"photos/0.png": picture_bytes("PNG", 100)})
    again = build(bucket, f"{bucket.url}/photos/")
    changed = [a for a, x, y in zip(store.ids, store.features, again.features) if not np.array_equal(x, y)]
    assert changed == [f"{bucket.url}/photos/0.png"]


def test_each_picture_is_fetched_once(web: FaultyServer, tmp_path: Path) -> None:
    urls = [web.says(f"/{name}", Answer(body=data)) for name, data in PICTURES.items()]
    build_store(MeanColour(), urls, tmp_path / "store")
    assert sorted(web.asked) == sorted(f"/{name}" for name in PICTURES)


def test_a_picture_at_an_address_can_be_handed_to_another_process() -> None:
    for source in (RemoteFile("s3://b/ü.png", 3, "7"), RemoteFile("https://h/a")):
        image = ImageItem(source.url, source)
        assert from_reference(image.id, to_reference(image) or "") == image


def test_commands_take_addresses(
    bucket: Bucket, tiny_clip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures on a store, encoded into a store there by other processes, and scored from it."""
    bucket.put({f"photos/{name}": data for name, data in PICTURES.items() if name != "x.png"})
    command, model = Runner(capsys), ["--model", tiny_clip_folder]
    to_store = ["--out", f"{bucket.url}/store", "--shard-size", 4, "--workers", 1]
    done = command("features", f"{bucket.url}/photos/", *to_store, *model)
    assert done.code == 0 and f"{bucket.url}/store: 6 images" in done.out, done.err
    done = command("score", f"{bucket.url}/store", "--classes", "cat,dog", "--out", tmp_path / "v.csv", *model)
    assert done.code == 0, done.err
    with (tmp_path / "v.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["path"] for row in rows] == [f"{bucket.url}/photos/{name}" for name in sorted(PICTURES)[:-1]]
    done = command("verify", f"{bucket.url}/store")
    assert done.code == 0 and "every byte as it was written" in done.out


def test_wrong_places(bucket: Bucket) -> None:
    with pytest.raises(InputError, match="web server"):
        build_store(MeanColour(), [picture_bytes("PNG")], "https://host/store")
    with pytest.raises(InputError, match="password") as caught:
        FeatureStore.open("s3://me:hunter2@bucket/store")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ArtifactError, match="feature store"):
        FeatureStore.open(f"{bucket.url}/nothing")
    bucket.put({"taken/a.txt": b"x"})
    with pytest.raises(InputError, match="is not empty"):
        build_store(MeanColour(), [picture_bytes("PNG")], f"{bucket.url}/taken")


def test_a_store_that_may_not_be_read_is_not_taken_for_none(bucket: Bucket) -> None:
    bucket.front.always = store_error(403, "AuthorizationPermissionMismatch")
    with pytest.raises(UnreachableError, match=r"store\.json"):
        is_store(f"{bucket.url}/store")
