"""The plan of a store: fixed before the start, shared by several runs, and given up without loss."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deltaenergy.data.file import RemoteFile
from deltaenergy.data.items import ImageItem, hash_content
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.source import build_store, image_stream
from deltaenergy.store.filling import Filled, Filler, InThisProcess, PlanGone, Task
from deltaenergy.store.folder import LocalPlace
from deltaenergy.store.manifest import read_manifest
from deltaenergy.store.plan import FOLDER, RECORD, PlanReader, free_numbers, read_plan, remove_plan
from deltaenergy.store.store import FeatureStore
from deltaenergy.store.summary import summarise
from deltaenergy.store.to_do import PlanLimits, ToDo
from deltaenergy.store.writer import MOST_SHARDS, fill_store, usual_shard_size
from tests.data.colour_model import MeanColour

IMAGES = 11


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eleven pictures; the fifth cannot be read, the ninth is the second again, and the tenth the fifth again."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(3)
    for i in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i:02d}.png")
    (folder / "04.png").write_bytes(b"no picture")
    shutil.copy(folder / "01.png", folder / "08.png")
    shutil.copy(folder / "04.png", folder / "09.png")
    return folder


@pytest.fixture
def whole(pictures: Path, tmp_path: Path) -> Path:
    build_store(MeanColour(), pictures, tmp_path / "whole", shard_size=4)
    return tmp_path / "whole"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Stop(Exception):
    """Ends a run."""


class Some:
    """Fills the shards that `which` picks, then ends the run as a kill would."""

    def __init__(self, *positions: int) -> None:
        self.positions = positions

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        yield from InThisProcess(MeanColour())(task, [p for p in positions if p in self.positions], progress)
        raise Stop


def begin(pictures: Any, out: Path, *positions: int) -> None:
    with pytest.raises(Stop):
        fill_store(MeanColour(), image_stream(pictures), out, shard_size=4, fill=Some(*positions))


def test_the_plan_says_what_each_shard_will_hold(pictures: Path, tmp_path: Path) -> None:
    begin(pictures, tmp_path / "store")
    place = LocalPlace(tmp_path / "store")
    plan = read_plan(place)
    assert plan is not None
    assert (plan.images, plan.shards, plan.shard_size) == (IMAGES, [0, 1, 2], 4)
    lines = [PlanReader(place, plan).images(position) for position in range(3)]
    assert [[Path(line.id).stem for line in shard] for shard in lines] == [
        ["00", "01", "02", "03"],
        ["04", "05", "06", "07"],
        ["08", "09", "10"],
    ]
    # Copies bring nothing: neither of a picture that can be read nor of one that cannot.
    assert [Path(line.id).stem for shard in lines for line in shard if not line.brings] == ["08", "09"]
    assert json.loads(lines[0][0].source or "") == {"path": str(pictures / "00.png")}


def test_shards_filled_in_any_order_by_several_runs_end_with_the_same_bytes(
    pictures: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 2)
    begin(pictures, out, 0)
    with pytest.warns(UserWarning, match="6 images"):
        assert len(FeatureStore.open(out)) == 6, "the copies' pictures are there; of the last shard one is not readable"
    build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_a_copy_of_an_unreadable_picture_in_another_shard_is_unreadable_too(pictures: Path, whole: Path) -> None:
    store = FeatureStore.open(whole)
    assert [Path(image.id).stem for image in store.unreadable] == ["04", "09"]
    assert len({image.reason for image in store.unreadable}) == 1
    assert len(store) == IMAGES - 2
    np.testing.assert_array_equal(store.features[1], store.features[store.ids.index((pictures / "08.png").as_posix())])
    before = contents(whole)
    build_store(MeanColour(), pictures, whole)
    assert contents(whole) == before, "nothing is left to be done"


def test_a_summary_counts_as_the_store_does(pictures: Path, whole: Path) -> None:
    def compare() -> None:
        store, found = FeatureStore.open(whole), summarise(whole)
        assert (found.images, found.has_patches, found.model) == (len(store), store.has_patches, store.model)
        assert sorted(found.unreadable, key=str) == sorted(store.unreadable, key=str)

    compare()
    Image.new("RGB", (8, 8), (9, 9, 200)).save(pictures / "04.png")  # two images now stand there twice
    Image.new("RGB", (8, 8), (9, 200, 9)).save(pictures / "06.png")
    build_store(MeanColour(), pictures, whole)
    compare()


def test_each_index_says_where_its_rows_are(whole: Path) -> None:
    for number in range(3):
        table = pq.read_table(whole / f"{number:05d}.index.parquet")
        assert table.column("shard").to_pylist() == [number] * len(table)


def test_other_images_end_a_plan_and_what_it_brought_stays(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0, 2)
    Image.new("RGB", (8, 8), (0, 0, 255)).save(pictures / "05.png")  # changed since it was planned
    Image.new("RGB", (8, 8), (255, 0, 0)).save(pictures / "11.png")
    encoded = []

    class Counting(MeanColour):
        def encode(self, images: Any, **options: Any) -> Any:
            encoded.extend(Path(item.id).stem for item in images)
            return super().encode(images, **options)

    store = build_store(Counting(), pictures, out)
    assert encoded == ["04", "05", "06", "07", "11"]
    assert (len(store), len(store.unreadable), store.complete) == (IMAGES - 1, 2, True)
    assert store.verify() == []
    assert not (out / FOLDER).exists()
    features = dict(zip((Path(identity).stem for identity in store.ids), store.features))
    np.testing.assert_allclose(features["05"], [0, 0, 1])
    np.testing.assert_allclose(features["11"], [1, 0, 0])


@pytest.mark.parametrize("name", ["plan.json", "00000.parquet"])
@pytest.mark.parametrize("change", ["cut", "flip", "remove"])
def test_a_damaged_plan_is_made_anew(name: str, change: str, pictures: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0)
    path = out / FOLDER / name
    data = bytearray(path.read_bytes())
    if change == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif change == "flip":
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    else:
        path.unlink()
    store = build_store(MeanColour(), pictures, out)
    assert (len(store), len(store.unreadable)) == (IMAGES - 2, 2)
    assert store.verify() == []
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("name", ["00000.features.npy", "00000.index.parquet"])
def test_a_damaged_shard_of_an_unfinished_plan_is_encoded_again(
    name: str, pictures: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0, 1)
    data = bytearray((out / name).read_bytes())
    data[-5] ^= 1
    (out / name).write_bytes(data)
    with pytest.warns(UserWarning, match="shard 00000 is damaged"):
        build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_every_flipped_bit_of_an_unlisted_index_is_found_or_harmless(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0)
    path = out / "00000.index.parquet"
    data = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = FeatureStore.open(out)
        for place in range(0, len(data), 7):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            try:
                found = FeatureStore.open(out)
            except ArtifactError as error:
                assert "00000" in str(error)
            else:
                assert (found.ids, found.labels, found.unreadable) == (
                    expected.ids,
                    expected.labels,
                    expected.unreadable,
                )


def test_two_runs_at_once_share_the_work(pictures: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    encoded: list[str] = []
    both = threading.Barrier(2, timeout=60)

    class Meeting(MeanColour):
        """The first shard of each run begins only when the other has begun one, too."""

        def __init__(self) -> None:
            self.met = False

        def encode(self, images: Any, **options: Any) -> Any:
            if not self.met:
                self.met = True
                both.wait()
            encoded.extend(item.id for item in images)
            return super().encode(images, **options)

    errors: list[BaseException] = []

    def run() -> None:
        try:
            build_store(Meeting(), pictures, out, shard_size=4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert len(encoded) == len(set(encoded)) == IMAGES - 2, "each picture once"
    assert contents(out) == contents(whole)


def test_a_run_with_other_images_does_not_disturb_the_one_at_work(pictures: Path, whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    out = tmp_path / "store"
    (tmp_path / "others").mkdir()
    shutil.copy(pictures / "00.png", tmp_path / "others" / "other.png")
    tried = []

    class Disturbed(MeanColour):
        def encode(self, images: Any, **options: Any) -> Any:
            def other() -> None:
                with pytest.raises(InputError, match=r"process \d+"):
                    build_store(MeanColour(), tmp_path / "others", out)
                tried.append(True)

            thread = threading.Thread(target=other)
            thread.start()
            thread.join(60)
            return super().encode(images, **options)

    build_store(Disturbed(), pictures, out, shard_size=4)
    assert tried == [True] * 3
    assert contents(out) == contents(whole)


def test_a_plan_that_is_gone_is_not_taken_for_finished(pictures: Path, whole: Path, tmp_path: Path) -> None:
    """As when, on an object store without locks, another run gave it up."""
    out, tries = tmp_path / "store", []

    def fill(task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        tries.append(len(positions))
        filled = InThisProcess(MeanColour())(task, positions, progress)
        if len(tries) == 1:
            yield next(filled)
            raise PlanGone
        yield from filled

    assert build_store(MeanColour(), pictures, out, shard_size=4, fill=fill).complete
    assert tries == [3, 2]
    assert contents(out) == contents(whole)


def test_a_shard_of_a_plan_that_is_gone_is_not_encoded(pictures: Path, tmp_path: Path) -> None:
    begin(pictures, tmp_path / "store", 0)
    place = LocalPlace(tmp_path / "store")
    plan = read_plan(place)
    assert plan is not None
    filler = Filler(place, read_manifest(place).record, plan, MeanColour(), 2)
    remove_plan(place)
    there = filler.fill(0)
    assert there is not None and there.number == 0
    with pytest.raises(PlanGone):
        filler.fill(1)


def test_files_that_no_manifest_lists_are_not_taken_for_new_shards(pictures: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    build_store(MeanColour(), sorted(pictures.iterdir())[:4], out, shard_size=4)
    for kind in ("features.npy", "index.parquet"):
        shutil.copy(out / f"00000.{kind}", out / f"00001.{kind}")
    build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_a_picture_far_away_is_known_by_address_and_stamp_without_being_fetched() -> None:
    def content(address: str, stamp: str) -> str | None:
        found, error = hash_content(ImageItem(address, RemoteFile(address, 10, stamp)))
        assert error is None
        return found

    first = content("s3://nowhere/a.jpg", "1")
    assert first == content("s3://nowhere/a.jpg", "1")
    assert len({first, content("s3://nowhere/a.jpg", "2"), content("s3://nowhere/b.jpg", "1")}) == 3


def test_images_that_change_while_they_are_listed_are_said(pictures: Path) -> None:
    """Of many images the list is made twice; of few it is kept, and later changes are for the next run."""
    (pictures / "z").mkdir()
    stream, few = image_stream(pictures), PlanLimits(kept=5, hashed_at_once=3)
    assert list(ToDo(stream, [], False, few).planned()) == list(ToDo(stream, [], False).planned())
    for limits in (few, PlanLimits(hashed_at_once=3)):
        todo = ToDo(stream, [], False, limits)
        planned = todo.planned()
        lines = [next(planned)]
        Image.new("RGB", (8, 8), "red").save(pictures / "z" / f"{limits.kept}.png")
        if limits is few:
            with pytest.raises(InputError, match="being listed"):
                list(planned)
        else:
            lines += planned
            assert len(lines) == todo.lines


def test_copies_beyond_the_limit_are_found_within_a_shard(pictures: Path, tmp_path: Path) -> None:
    few = PlanLimits(contents=0)
    fill_store(MeanColour(), image_stream(pictures), tmp_path / "a", shard_size=4, limits=few)
    assert sum(record.rows for record in read_manifest(LocalPlace(tmp_path / "a")).shards) == IMAGES - 2
    fill_store(MeanColour(), image_stream(pictures), tmp_path / "b", shard_size=100, limits=few)
    assert sum(record.rows for record in read_manifest(LocalPlace(tmp_path / "b")).shards) == IMAGES - 3
    store, apart = FeatureStore.open(tmp_path / "a"), FeatureStore.open(tmp_path / "b")
    np.testing.assert_array_equal(store.features, apart.features)
    assert store.ids == apart.ids


def test_numbers_of_new_shards() -> None:
    assert free_numbers([], 3) == [0, 1, 2]
    assert free_numbers([0, 2, 3], 3) == [1, 4, 5]


def test_shards_grow_before_there_are_too_many() -> None:
    assert usual_shard_size(1000, patches=False) == 1024
    assert usual_shard_size(1024 * MOST_SHARDS, patches=False) == 1024
    assert usual_shard_size(10**9, patches=False) == 16384
    assert usual_shard_size(10**9, patches=True) == 16384


def test_the_record_of_a_plan_is_where_it_is_said_to_be(pictures: Path, tmp_path: Path) -> None:
    begin(pictures, tmp_path / "store")
    assert (tmp_path / "store" / RECORD).is_file()
