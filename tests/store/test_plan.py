"""The plan of a store: it follows from the images, is shared by several runs, and given up without loss."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scale.build import build_store
from deltaenergy.source import image_stream
from deltaenergy.store.folder import LocalFolder
from deltaenergy.store.plan import FOLDER, PLAN, finished, read_plan, read_rows
from deltaenergy.store.shard import read_manifest
from deltaenergy.store.store import Store
from deltaenergy.store.writer import (
    Joiner,
    StoreSettings,
    Work,
    explain_write_errors,
    fill_store,
    finish,
    join_here,
    prepare,
    usual_shard_size,
)
from tests.data.colour_model import MeanColour
from tests.store.shards import contents, draw_images

IMAGES = 11


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eleven images; the fifth cannot be read, the ninth is the second again, and the tenth the fifth again."""
    names = [f"{i:02d}.png" for i in range(IMAGES)]
    copies = {"08.png": "01.png", "09.png": "04.png"}
    return draw_images(tmp_path / "pictures", names, unreadable="04.png", copies=copies)


@pytest.fixture
def whole(pictures: Path, tmp_path: Path) -> Path:
    build_store(MeanColour(), pictures, tmp_path / "whole", shard_size=4)
    return tmp_path / "whole"


class Stop(Exception):
    """Ends a run."""


def begin(pictures: Any, out: Path, *positions: int) -> None:
    """A run that encodes these shards, and then ends as a kill would end it."""

    def join(work: Work, _: object) -> None:
        joiner = Joiner(work, MeanColour())
        for position in positions:
            assert joiner.take(position, lambda *_: None)
        raise Stop

    with pytest.raises(Stop):
        fill_store(MeanColour(), image_stream(pictures), out, StoreSettings(shard_size=4), join=join)


class Counting(MeanColour):
    """Counts the images that it encodes."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, images: Any, **options: Any) -> Any:
        listed = list(images)
        self.encoded += [Path(item.id).stem for item in listed]
        return super().encode(listed, **options)


def test_the_plan_says_what_each_shard_will_have(pictures: Path, tmp_path: Path) -> None:
    begin(pictures, tmp_path / "store")
    folder = LocalFolder(tmp_path / "store")
    plan = read_plan(folder)
    assert plan is not None and plan.is_for(folder.read("store.json"))
    assert [(shard.number, shard.version, shard.images) for shard in plan.shards] == [(0, 1, 4), (1, 1, 4), (2, 1, 3)]
    rows = [read_rows(folder, shard) for shard in plan.shards]
    assert [[Path(image.id).stem for image in shard] for shard in rows] == [
        ["00", "01", "02", "03"],
        ["04", "05", "06", "07"],
        ["08", "09", "10"],
    ]
    assert json.loads(rows[0][0].source or "") == {"path": str(pictures / "00.png")}
    assert (tmp_path / "store" / PLAN).is_file()


def test_shards_encoded_in_any_order_by_several_runs_end_with_the_same_bytes(
    pictures: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 2)
    begin(pictures, out, 0)
    with pytest.warns(UserWarning, match="7 images so far"):
        part = Store.open(out)
    assert [Path(name).stem for name in part.ids] == ["00", "01", "02", "03", "08", "09", "10"]
    assert not part.complete and len(part.unreadable) == 1
    build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_a_copy_of_an_unreadable_image_is_unreadable_too(pictures: Path, whole: Path) -> None:
    store = Store.open(whole)
    assert [Path(image.id).stem for image in store.unreadable] == ["04", "09"]
    assert len({image.reason for image in store.unreadable}) == 1
    before = contents(whole)
    build_store(MeanColour(), pictures, whole)
    assert contents(whole) == before, "nothing is left to be done"


def test_other_images_end_a_plan_and_what_it_finished_stays(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0, 2)
    Image.new("RGB", (8, 8), (0, 0, 255)).save(pictures / "05.png")  # changed since it was planned
    Image.new("RGB", (8, 8), (255, 0, 0)).save(pictures / "11.png")
    model = Counting()
    store = build_store(model, pictures, out)
    assert model.encoded == ["04", "05", "06", "07", "11"]
    assert (len(store), len(store.unreadable), store.complete) == (IMAGES + 1, 2, True)
    assert store.verify() == []
    assert not (out / FOLDER).exists()
    rows = [next(row for row, name in enumerate(store.ids) if name.endswith(f"{stem}.png")) for stem in ("05", "11")]
    np.testing.assert_allclose(store.features(rows), [[0, 0, 1], [1, 0, 0]])


def test_a_plan_that_was_given_up_leaves_its_names_to_nobody(pictures: Path, tmp_path: Path) -> None:
    """One of its processes may still be at work, on a machine whose locks are not seen."""
    out = tmp_path / "store"
    begin(pictures, out, 0)
    late = Work.at(str(out))
    assert late is not None
    Image.new("RGB", (8, 8), (255, 0, 0)).save(pictures / "11.png")
    build_store(MeanColour(), pictures, out)
    before = contents(out)
    join_here(late, MeanColour())
    assert contents(out) == before, "it sees that its plan is over"
    planned = {f"{shard.number:05d}-{shard.version}.arrow" for shard in late.plan.shards}
    assert planned & before.keys() == {"00000-1.arrow"}
    with pytest.raises(ArtifactError, match="Another run"):
        finish(late)


def test_a_plan_for_another_manifest_is_over(pictures: Path, whole: Path, tmp_path: Path) -> None:
    """As when a run is killed after it has replaced the manifest, and before it has removed the plan."""
    out = tmp_path / "store"
    begin(pictures, out, 0, 1, 2)
    before = {name: data for name, data in contents(out).items() if name.startswith(FOLDER)}
    build_store(MeanColour(), pictures, out)
    (out / FOLDER).mkdir()
    for name, data in before.items():
        (out / name).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store.open(out).complete
    model = Counting()
    build_store(model, pictures, out)
    assert model.encoded == [] and contents(out) == contents(whole)


@pytest.mark.parametrize("name", ["plan.json", "rows", "00000-1.json"])
@pytest.mark.parametrize("change", ["cut", "flip", "remove"])
def test_a_damaged_plan_is_made_again(name: str, change: str, pictures: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0)
    path = min((out / FOLDER).glob(f"{name}*"))
    data = bytearray(path.read_bytes())
    if change == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif change == "flip":
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    else:
        path.unlink()
    model = Counting()
    store = build_store(model, pictures, out)
    assert store.verify() == []
    assert contents(out) == contents(whole)
    again = 3 if name == "00000-1.json" else 0
    assert len(model.encoded) == 7 + again + (1 if again else 0), "a shard whose record is sound is not encoded again"


def test_a_worker_says_that_its_list_is_damaged(pictures: Path, tmp_path: Path) -> None:
    begin(pictures, tmp_path / "store", 0)
    work = Work.at(str(tmp_path / "store"))
    assert work is not None
    for rows in (tmp_path / "store" / FOLDER).glob("rows*"):
        rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"rows-.*again"):
        join_here(work, MeanColour())


@pytest.mark.parametrize("change", ["cut", "index", "remove"])
def test_a_damaged_shard_of_an_unfinished_plan_is_encoded_again(
    change: str, pictures: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0, 1)
    path = out / "00000-1.arrow"
    data = bytearray(path.read_bytes())
    if change == "cut":
        del data[-5:]
    else:
        data[60] ^= 1
    path.write_bytes(data)
    if change == "remove":
        path.unlink()
    build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_every_flipped_bit_of_a_record_is_found(pictures: Path, tmp_path: Path) -> None:
    """A shard counts as finished only with a sound record, of the same images."""
    begin(pictures, tmp_path / "store", 0)
    folder = LocalFolder(tmp_path / "store")
    plan = read_plan(folder)
    assert plan is not None and list(finished(folder, plan)) == [0]
    path = tmp_path / "store" / plan.shards[0].file("json")
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert finished(folder, plan) == {}
    path.write_bytes(data)
    shutil.copy(path, tmp_path / "store" / plan.shards[1].file("json"))
    assert list(finished(folder, plan)) == [0]


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
            listed = list(images)
            encoded.extend(item.id for item in listed)
            return super().encode(listed, **options)

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
    assert len(encoded) == len(set(encoded)) == IMAGES, "each image once"
    assert contents(out) == contents(whole)


def test_a_plan_folder_that_another_run_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaenergy.files import atomic
    from deltaenergy.store import folder as folder_module

    made: list[Path] = []
    make = atomic.make_folder

    def make_and_lose(path: Path) -> None:
        make(path)
        if path not in made:
            made.append(path)
            path.rmdir()

    for module in (atomic, folder_module):
        monkeypatch.setattr(module, "make_folder", make_and_lose)
    folder = folder_module.LocalFolder(tmp_path / "store")
    with folder.lock("plan/0.lock") as held:
        assert held
    made.clear()
    assert folder.put("plan/rows", b"data") and folder.read("plan/rows") == b"data"


def test_a_run_with_other_images_does_not_disturb_the_one_at_work(pictures: Path, whole: Path, tmp_path: Path) -> None:
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


def test_a_second_planner_joins_the_first(pictures: Path, whole: Path, tmp_path: Path) -> None:
    """Both find no plan; the one that is slower finds the other's when it writes its own."""
    out = tmp_path / "store"
    nested: list[Work | None] = []

    def listing() -> Any:
        yield from image_stream(pictures)
        if not nested:
            nested.append(None)
            nested[0] = prepare(
                LocalFolder(out), MeanColour(), image_stream(pictures), StoreSettings(shard_size=4), False
            )

    from deltaenergy.data.streams import ImageStream

    store = fill_store(MeanColour(), ImageStream(listing), out, StoreSettings(shard_size=4))
    assert store.complete and nested[0] is not None
    join_here(nested[0], MeanColour())
    finish(nested[0])
    assert contents(out) == contents(whole)


def test_the_batch_size_of_the_first_run_counts(pictures: Path, tmp_path: Path) -> None:
    asked: list[int] = []

    class Batches(MeanColour):
        def encode(self, images: Any, *, batch_size: int, **options: Any) -> Any:
            asked.append(batch_size)
            return super().encode(images, batch_size=batch_size, **options)

    build_store(Batches(), sorted(pictures.iterdir())[:5], tmp_path / "store", batch_size=7, shard_size=4)
    store = build_store(Batches(), pictures, tmp_path / "store", batch_size=3)
    assert set(asked) == {7} and store.manifest.batch_size == 7


def test_files_that_no_record_names_are_not_taken_for_shards(pictures: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    begin(pictures, out, 0)
    shutil.copy(out / "00000-1.arrow", out / "00001-1.arrow")
    build_store(MeanColour(), pictures, out)
    assert contents(out) == contents(whole)


def test_each_image_is_read_once_and_none_for_its_hash(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    opened: list[str] = []
    original = io.open

    def counted(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).startswith(str(pictures)):
            opened.append(Path(file).stem)
        return original(file, *arguments, **options)

    monkeypatch.setattr(io, "open", counted)
    build_store(MeanColour(), pictures, tmp_path / "store", shard_size=4)
    assert sorted(opened) == [f"{i:02d}" for i in range(IMAGES)]
    build_store(MeanColour(), pictures, tmp_path / "store")
    assert len(opened) == IMAGES, "a second run reads none"


def test_a_folder_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = LocalFolder(tmp_path / "file")
    with pytest.raises(ArtifactError, match="cannot be written"), explain_write_errors(folder):
        folder.put("a", b"")


def test_shards_are_cut_by_the_number_of_images() -> None:
    assert [usual_shard_size(images, patches=False) for images in (1, 10_000, 50_000, 131_072, 10**9)] == [
        64,
        64,
        256,
        1024,
        1024,
    ]
    assert 50_000 / usual_shard_size(50_000, patches=False) > 100, "enough for a hundred workers"
    assert [usual_shard_size(images, patches=True) for images in (1, 10**9)] == [64, 128]


def test_the_count_of_the_first_run_decides(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaenergy.store.writer.LEAST_SHARD", 1)
    monkeypatch.setattr("deltaenergy.store.writer.SHARDS", 3)
    build_store(MeanColour(), sorted(pictures.iterdir())[:6], tmp_path / "store")
    store = build_store(MeanColour(), pictures, tmp_path / "store")
    manifest, _ = read_manifest(LocalFolder(tmp_path / "store"))
    assert manifest.shard_size == 2 and [record.images for record in manifest.shards] == [2, 2, 2, 2, 2, 1]
    assert len(store) == IMAGES
