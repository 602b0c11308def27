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
from deltaenergy.scale.build import build_store, repair_store
from deltaenergy.source import image_stream, load_images
from deltaenergy.store.folder import RemoteFolder, open_folder
from deltaenergy.store.plan import FOLDER
from deltaenergy.store.shard import is_store, read_manifest
from deltaenergy.store.store import Store
from deltaenergy.store.writer import Joiner, StoreSettings, Work, fill_store, finish, join_here
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
    return {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}


def contents(bucket: Bucket, folder: str = "store/") -> dict[str, bytes]:
    return {key.removeprefix(folder): bucket.get(key) for key in bucket.list() if key.startswith(folder)}


def build(bucket: Bucket, photos: Any, **options: Any) -> Store:
    return build_store(MeanColour(), photos, f"{bucket.url}/store", shard_size=2, **options)


def test_the_same_bytes_as_on_disk(bucket: Bucket, photos: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    store = build(bucket, photos)
    assert contents(bucket) == expected
    local = Store.open(tmp_path / "local")
    assert (store.ids, store.unreadable, store.path) == (local.ids, local.unreadable, f"{bucket.url}/store")
    np.testing.assert_array_equal(store.features(store.readable), local.features(local.readable))
    np.testing.assert_array_equal(store.features([4, 0, 2]), local.features([4, 0, 2]))
    for here, there in zip(local.shards(), store.shards()):
        np.testing.assert_array_equal(here.features, there.features)
    assert Store.open(f"{bucket.url}/store/").verify() == []
    assert [item.id for item in load_images(f"{bucket.url}/store")] == [item.id for item in local.items()]
    assert is_store(f"{bucket.url}/store/") and not is_store(f"{bucket.url}/elsewhere")


def test_a_second_run_changes_nothing_and_adds_what_is_new(bucket: Bucket, photos: Path) -> None:
    build(bucket, photos)
    before = contents(bucket)
    build(bucket, photos)
    assert contents(bucket) == before
    (photos / "new.png").write_bytes(picture_bytes("PNG", 9))
    assert len(build(bucket, photos)) == 8
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
    # The manifest twice, the plan's five files, four shards and their records, and the plan's nine files removed.
    assert kills == math.ceil(24 / every)


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
    with pytest.warns(UserWarning, match="incomplete"):
        part = Store.open(f"{bucket.url}/store")
    assert 0 < len(part) < 7
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
    nested: list[Store] = []

    def progress(done: int, total: int | None) -> None:
        if done >= 2 and not nested:
            nested.append(build(bucket, photos))

    store = build(bucket, photos, progress=progress)
    assert contents(bucket) == expected and nested[0].ids == store.ids


def test_operations(bucket: Bucket) -> None:
    folder = open_folder(f"{bucket.url}/store/")
    assert isinstance(folder, RemoteFolder) and str(folder) == folder.address == f"{bucket.url}/store"
    assert folder.sizes() == {} and not folder.exists("a")
    assert folder.put("a", b"first", if_absent=True)
    assert not folder.put("a", b"second", if_absent=True) and folder.read("a") == b"first"
    assert folder.put("a", b"third") and folder.read("a") == b"third" == bucket.get("store/a")
    assert folder.replace("a", b"fourth", before=b"third") and not folder.replace("a", b"fifth", before=b"third")
    assert folder.read("a") == b"fourth"
    assert folder.put("b", b"") and folder.read("b") == b""
    assert folder.put("plan/x", b"1")
    assert folder.sizes() == {"a": 6, "b": 0, "plan/": 0} and folder.sizes("plan") == {"x": 1}
    folder.delete("a")
    folder.delete("a")
    assert not folder.exists("a")
    with pytest.raises(FileNotFoundError):
        folder.read("a")
    with folder.lock("x") as first, folder.lock("x") as second:
        assert first and second, "there are no locks"


def test_a_manifest_that_changes_between_look_and_write_is_not_replaced(bucket: Bucket) -> None:
    folder = open_folder(f"{bucket.url}/store")
    folder.put("a", b"before")

    def happens(when: str, _: str) -> None:
        if when == "before":
            use_connections()
            folder.put("a", b"of another")

    watch({"put"}, happens)
    assert not folder.replace("a", b"ours", before=b"before")
    assert folder.read("a") == b"of another"


def test_damage_is_found_and_repaired(bucket: Bucket, photos: Path, expected: dict[str, bytes]) -> None:
    record = build(bucket, photos).manifest.shards[1]
    data = bytearray(expected[record.name])
    data[record.start] ^= 1
    bucket.put({f"store/{record.name}": bytes(data)})
    (problem,) = Store.open(f"{bucket.url}/store").verify()
    assert problem.startswith(record.name)
    assert repair_store(f"{bucket.url}/store", photos, model=MeanColour()) == [record.name]
    assert contents(bucket) == expected
    bucket.put({"store/00000-1.arrow": b"short"})
    with pytest.raises(ArtifactError, match="5 bytes"):
        Store.open(f"{bucket.url}/store")


def test_few_files_are_kept(bucket: Bucket, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = build(bucket, photos)
    asked: list[str] = []
    watch({"get"}, lambda when, key: asked.append(key) if when == "before" else None)
    store = Store(RemoteFolder(str(opened.path)), opened.manifest)
    whole = store.features(range(6))
    assert len(asked) == len(set(asked)) == 3
    store.features(range(6))
    assert len(asked) == 3
    with pytest.raises(ValueError, match="read-only"):
        store.features([0, 1])[0, 0] = 1
    monkeypatch.setattr("deltaenergy.store.store._MOST_FETCHED", 1)
    store = Store(RemoteFolder(str(opened.path)), opened.manifest)
    asked.clear()
    np.testing.assert_array_equal(np.concatenate([shard.features for shard in store.shards()])[:6], whole)
    store.features([1, 5, 0])
    assert [key[-len("0-1.arrow")] for key in asked] == ["0", "1", "2", "3", "0", "2"]


def test_an_index_is_read_without_its_features(bucket: Bucket, tmp_path: Path) -> None:
    class Wide(MeanColour):
        """Features that are large enough to be worth leaving out."""

        feature_dim = 30_000

        def encode(self, images: Any, **options: Any) -> Any:
            found = super().encode(images, **options)
            found.features = np.tile(found.features, 10_000)
            return found

    images = [picture_bytes("PNG", i) for i in range(4)]
    store = build_store(Wide(), images, f"{bucket.url}/store")
    (record,) = store.manifest.shards
    fetched: list[tuple[int, int]] = []
    from deltaenergy.store import folder

    def counted(of: Any, start: int, end: int) -> bytes:
        fetched.append((start, end))
        return get_range(of, start, end)

    get_range = folder.get_range
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "get_range", counted)
        assert Store.open(f"{bucket.url}/store").ids == [f"image {i}" for i in range(4)]
    assert set(fetched) == {(0, record.start), (record.stop, record.bytes)}
    assert record.stop - record.start >= 4 * 30_000 * 4


class Rounding(MeanColour):
    """A processor that rounds differently."""

    def __init__(self, error: float) -> None:
        self.error, self.encoded = error, 0

    def encode(self, images: Any, **options: Any) -> Any:
        found = super().encode(images, **options)
        self.encoded += len(found.items)
        found.features += np.float32(self.error)
        return found


def plan_only(bucket: Bucket, photos: Any) -> Work:
    """A store with a plan, of which nothing is done."""
    works: list[Work] = []

    class Planned(Exception):
        pass

    def join(work: Work, _: object) -> None:
        works.append(work)
        raise Planned

    with pytest.raises(Planned):
        fill_store(MeanColour(), image_stream(photos), f"{bucket.url}/store", StoreSettings(shard_size=2), join=join)
    return works[0]


def test_a_shard_that_two_encode_counts_as_the_first_wrote_it(bucket: Bucket, photos: Path) -> None:
    work = plan_only(bucket, photos)
    first = Rounding(0.0)
    name = work.plan.shards[0].file("json")

    class Between(Rounding):
        """While the second encodes the shard, the first finishes it; and its record gets lost on top of that."""

        def encode(self, images: Any, **options: Any) -> Any:
            found = super().encode(images, **options)
            Joiner(work, first).take(0, lambda *_: None)
            work.folder.delete(name)
            return found

    late = Joiner(work, Between(1e-4))
    assert late.take(0, lambda *_: None)
    join_here(work, first)
    finish(work)
    store = Store.open(f"{bucket.url}/store")
    assert store.verify() == []
    local = build_store(MeanColour(), photos, photos.parent / "here")
    np.testing.assert_array_equal(store.features([0, 1]), local.features([0, 1]))


def test_workers_share_the_shards_and_help_in_the_end(bucket: Bucket, photos: Path, expected: dict[str, bytes]) -> None:
    """The first of two takes every second shard; the other is dead, so in the end it takes those as well."""
    work = plan_only(bucket, photos)
    order: list[int] = []
    join_here(work, MeanColour(), first=1, step=2, report=lambda shard, _, done: order.append(shard) if done else None)
    assert order[:2] == [1, 3] and sorted(order) == [0, 1, 2, 3]
    finish(work)
    assert contents(bucket) == expected


def test_a_worker_that_comes_late_finds_all_done(bucket: Bucket, photos: Path, expected: dict[str, bytes]) -> None:
    work = plan_only(bucket, photos)
    build(bucket, photos)
    model = Rounding(1.0)  # whose features would differ
    join_here(work, model, first=1, step=2)
    assert contents(bucket) == expected


def test_two_runs_with_other_images_lose_nothing(bucket: Bucket, photos: Path, tmp_path: Path) -> None:
    """The second gives up the plan of the first, whose run then ends with an error; what it had finished stays."""
    others = tmp_path / "others"
    others.mkdir()
    for i in range(3):
        (others / f"{i}.png").write_bytes(picture_bytes("PNG", 50 + i))
    done: list[Store] = []

    def progress(images: int, _: int | None) -> None:
        if images >= 2 and not done:
            done.append(build(bucket, others))

    with pytest.raises(ArtifactError, match="Another run"):
        build(bucket, photos, progress=progress)
    assert done[0].verify() == [] and len(done[0]) >= 3
    store = build(bucket, photos)
    assert store.complete and store.verify() == [] and len(store) == 10
    assert not [key for key in contents(bucket) if key.startswith(FOLDER)]
    names = {record.name for record in read_manifest(open_folder(store.path))[0].shards}
    assert names <= contents(bucket).keys()


def test_images_and_store_at_urls(bucket: Bucket, photos: Path, tmp_path: Path) -> None:
    """Each picture is fetched once, though it is hashed and encoded; a changed one is encoded again."""
    bucket.put({f"photos/{name}": data for name, data in PICTURES.items()})
    store = build(bucket, f"{bucket.url}/photos/")
    local = build_store(MeanColour(), photos, tmp_path / "here")
    np.testing.assert_array_equal(store.features(store.readable), local.features(local.readable))
    bucket.put({"photos/0.png": picture_bytes("PNG", 100)})
    again = build(bucket, f"{bucket.url}/photos/")
    rows = store.readable
    changed = (store.features(rows) != again.features(rows)).any(axis=1)
    assert [store.ids[row] for row in rows[changed]] == [f"{bucket.url}/photos/0.png"]


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
    score = ["score", f"{bucket.url}/store", "--classes", "cat,dog", *model]
    assert command(*score, "--out", f"{bucket.url}/out/v.csv").code == 0
    assert bucket.get("out/v.csv") == (tmp_path / "v.csv").read_bytes()
    done = command("verify", f"{bucket.url}/store")
    assert done.code == 0 and "every byte as it was written" in done.out


def test_wrong_places(bucket: Bucket) -> None:
    with pytest.raises(InputError, match="web server"):
        build_store(MeanColour(), [picture_bytes("PNG")], "https://host/store")
    with pytest.raises(InputError, match="password") as caught:
        Store.open("s3://me:hunter2@bucket/store")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ArtifactError, match="feature store"):
        Store.open(f"{bucket.url}/nothing")
    bucket.put({"taken/a.txt": b"x"})
    with pytest.raises(InputError, match="is not empty"):
        build_store(MeanColour(), [picture_bytes("PNG")], f"{bucket.url}/taken")


def test_a_store_that_may_not_be_read_is_not_taken_for_none(bucket: Bucket) -> None:
    bucket.front.always = store_error(403, "AuthorizationPermissionMismatch")
    with pytest.raises(UnreachableError, match=r"store\.json"):
        is_store(f"{bucket.url}/store")
