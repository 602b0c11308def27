"""The feature store: what it holds, what it refuses, and that it stands in for images everywhere."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy import Model, Store, build_store
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.encoding import EncodedImages
from tests.checkpoints import write_clip
from tests.store.shards import contents


class Counting:
    """A model that counts the images it is given to encode."""

    def __init__(self, model: Model) -> None:
        self.ids: list[str] = []
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def feature_dim(self) -> int:
        return self._model.feature_dim

    def describe(self) -> dict[str, Any]:
        return self._model.describe()

    def encode(self, images: Any, **options: Any) -> EncodedImages:
        listed = list(images)
        self.ids += [item.id for item in listed]
        return self._model.encode(listed, **options)


@pytest.fixture
def encoded(tiny_clip: Model) -> Counting:
    return Counting(tiny_clip)


def test_rows_are_the_images_features(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    paths = sorted(photos.rglob("*.png"))
    assert store.ids == [path.as_posix() for path in paths]
    assert store.labels == [path.parent.name for path in paths]
    assert store.index["domain"].to_pylist() == [None] * 8
    assert store.unreadable == []
    assert store.complete
    assert store.index["content"].to_pylist() == [
        hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in paths
    ]
    # The independent value: transformers-checked encode_images, in batches of the shards' sizes.
    expected = np.concatenate([tiny_clip.encode_images(paths[i : i + 3]) for i in (0, 3, 6)])
    np.testing.assert_array_equal(store.features(), expected)
    np.testing.assert_array_equal(store.features([7, 0, 0, 4]), expected[[7, 0, 0, 4]])
    shards = list(store.shards())
    assert [shard.rows.tolist() for shard in shards] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    np.testing.assert_array_equal(np.concatenate([shard.features for shard in shards]), expected)
    assert [name for shard in shards for name in shard.index["id"].to_pylist()] == store.ids
    for rows in ([8], [-1], [0.5], [True, False]):
        for take in (store.features, store.select):
            with pytest.raises(InputError, match="rows"):
                take(rows)


def test_rows_are_given_as_a_mask(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    mask = np.arange(8) % 3 == 1
    np.testing.assert_array_equal(store.features(mask), store.features()[mask])
    assert [item.id for item in store.select(mask)] == [store.ids[row] for row in (1, 4, 7)]
    assert store.features(mask & False).shape == (0, tiny_clip.feature_dim) and store.select([]) == []


def test_rows_are_read_from_the_file_without_a_copy(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store")
    (shard,) = store.shards()
    for view in (store.features(), shard.features, store.features([2, 3, 4])):
        assert not view.flags.owndata
        assert not view.flags.writeable
    assert np.shares_memory(store.features(), store.features([2, 3, 4]))
    (again,) = store.shards()
    assert np.shares_memory(shard.features, again.features), "a file is mapped once"
    assert not np.shares_memory(shard.features, store.shard(0).features), "by itself a shard does not stay mapped"


def test_second_run_encodes_nothing(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos, tmp_path / "store", shard_size=3)
    assert len(encoded.ids) == 8
    before = contents(tmp_path / "store")
    build_store(encoded, photos, tmp_path / "store")
    assert len(encoded.ids) == 8
    assert contents(tmp_path / "store") == before


def test_images_can_be_added(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos / "cat", tmp_path / "store", shard_size=3)
    first = contents(tmp_path / "store")
    store = build_store(encoded, photos / "dog", tmp_path / "store")
    assert len(encoded.ids) == 8
    np.testing.assert_allclose(store.features(), encoded.encode_images(store.ids), atol=1e-6)
    changed = {name for name, data in first.items() if contents(tmp_path / "store")[name] != data}
    assert changed == {"store.json"}, "shards that are there stay as they are"


def test_equal_images_are_encoded_once_within_a_shard(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    shutil.copy(photos / "cat" / "0.png", photos / "dog" / "copy.png")
    for size, times in ((100, 8), (2, 9)):
        encoded.ids.clear()
        store = build_store(encoded, photos, tmp_path / f"of {size}", shard_size=size)
        assert (len(encoded.ids), len(store)) == (times, 9)
        copy, original = (store.ids.index((photos / p).as_posix()) for p in ("dog/copy.png", "cat/0.png"))
        np.testing.assert_allclose(store.features([copy]), store.features([original]), atol=1e-6)
        assert store.labels[copy] == "dog"


def test_images_that_the_store_has_already_are_not_encoded(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    """A folder that was moved, and one that is copied into: what was there before the run counts, bit by bit."""
    before = build_store(encoded, photos, tmp_path / "store", shard_size=3, patches=True)
    features, patches = before.features(), before.patches()
    encoded.ids.clear()
    moved = photos.rename(tmp_path / "moved")
    Image.new("RGB", (30, 30), "red").save(moved / "cat" / "new.png")
    store = build_store(encoded, moved, tmp_path / "store")
    assert encoded.ids == [(moved / "cat" / "new.png").as_posix()]
    rows = [row for row in range(8, 17) if not store.ids[row].endswith("new.png")]
    np.testing.assert_array_equal(store.features(rows), features)
    np.testing.assert_array_equal(store.patches(rows), patches)


def test_changed_files_are_encoded_again(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    before = build_store(encoded, photos, tmp_path / "store", shard_size=3)
    features, names = before.features(), {path.name for path in (tmp_path / "store").glob("*.arrow")}
    changed = photos / "cat" / "2.png"
    Image.new("RGB", (30, 30), "red").save(changed)
    os.utime(changed, ns=(1, 1))
    encoded.ids.clear()
    store = build_store(encoded, photos, tmp_path / "store")
    assert encoded.ids == [changed.as_posix()]
    assert (len(store), store.ids[2]) == (8, changed.as_posix())
    np.testing.assert_allclose(store.features([2]), encoded.encode_images([changed]), atol=1e-6)
    np.testing.assert_array_equal(np.delete(store.features(), 2, 0), np.delete(features, 2, 0))
    # Its shard has a new version; one who reads the old one finds it there until the next run.
    assert {path.name for path in (tmp_path / "store").glob("*.arrow")} == names | {"00000-2.arrow"}
    np.testing.assert_array_equal(before.features(), features)
    build_store(encoded, photos, tmp_path / "store")
    assert {path.name for path in (tmp_path / "store").glob("*.arrow")} == names - {"00000-1.arrow"} | {"00000-2.arrow"}


def test_touched_file_is_not_encoded_again(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos, tmp_path / "store")
    os.utime(photos / "cat" / "2.png", ns=(1, 1))
    encoded.ids.clear()
    assert len(build_store(encoded, photos, tmp_path / "store")) == 8
    assert encoded.ids == []


def test_a_new_label_needs_no_image(photos: Path, tmp_path: Path, encoded: Counting, monkeypatch: Any) -> None:
    """Only the index of the shard is written again: the file need not even be read."""
    before = build_store(encoded, photos, tmp_path / "store", shard_size=3)
    features = before.features()
    encoded.ids.clear()
    table = [{"path": name, "label": "other" if row == 4 else label} for row, (name, label) in
             enumerate(zip(before.ids, before.labels))]  # fmt: skip
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, table)))
    monkeypatch.setattr("deltaenergy.store.encode._read", None)
    store = build_store(encoded, tmp_path / "table.jsonl", tmp_path / "store")
    assert encoded.ids == [] and store.labels == [row["label"] for row in table]
    np.testing.assert_array_equal(store.features(), features)


def test_unreadable_images_are_recorded_and_retried_when_asked(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    (photos / "dog" / "bad.png").write_bytes(b"no picture")
    missing = (photos / "dog" / "gone.png").as_posix()
    images = [*sorted(photos.rglob("*.png")), missing]
    store = build_store(encoded, images, tmp_path / "store", shard_size=4)
    assert [u.id for u in store.unreadable] == [(photos / "dog" / "bad.png").as_posix(), missing]
    assert "not an image" in store.unreadable[0].reason
    assert (len(store), len(store.readable)) == (10, 8)
    encoded.ids.clear()
    before = contents(tmp_path / "store")
    build_store(encoded, images, tmp_path / "store")
    assert encoded.ids == []
    assert contents(tmp_path / "store") == before
    build_store(encoded, images, tmp_path / "store", retry_unreadable=True)
    assert encoded.ids == [(photos / "dog" / "bad.png").as_posix()]
    assert contents(tmp_path / "store") == before
    Image.new("RGB", (30, 30), "red").save(missing)  # a file that appears is a change, and needs no asking
    store = build_store(encoded, images, tmp_path / "store")
    assert [u.id for u in store.unreadable] == [(photos / "dog" / "bad.png").as_posix()]
    assert store.ids.index(missing) in store.readable


def test_rows_without_features_are_never_handed_out(photos: Path, tmp_path: Path, tiny_clip: Model) -> None:
    (photos / "cat" / "bad.png").write_bytes(b"no picture")
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3, patches=True)
    bad = store.ids.index((photos / "cat" / "bad.png").as_posix())
    for call in (store.features, store.patches):
        for rows in (None, [bad], [0, bad, 1]):
            with pytest.raises(InputError, match=r"bad\.png"):
                call(rows)
    np.testing.assert_allclose(np.linalg.norm(store.features(store.readable), axis=1), 1, atol=1e-5)
    shards = list(store.shards(patches=True))
    assert [row for shard in shards for row in shard.rows] == store.readable.tolist()
    assert [image for shard in shards for image in shard.unreadable] == store.unreadable
    for shard in shards:
        np.testing.assert_array_equal(shard.features, store.features(shard.rows))
        np.testing.assert_array_equal(shard.patches, store.patches(shard.rows))
    columns = pa_file(tmp_path / "store" / "00001-1.arrow")
    assert columns["features"].null_count == columns["patches"].null_count == 1


def pa_file(path: Path) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(path).read_all()


def test_a_shard_without_a_readable_image(photos: Path, tmp_path: Path, tiny_clip: Model) -> None:
    """It does not know how many patches an image has, until one of its images can be read."""
    whole = {path: path.read_bytes() for path in sorted(photos.rglob("*.png"))}
    for path in list(whole)[:3]:
        path.write_bytes(b"no picture")
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3, patches=True)
    assert len(store.unreadable) == 3 and store.verify() == []
    for path, data in whole.items():
        path.write_bytes(data)
    store = build_store(tiny_clip, photos, tmp_path / "store")
    direct = tiny_clip.encode(photos, patches=True)
    np.testing.assert_allclose(store.features(), direct.features, atol=1e-6)
    np.testing.assert_allclose(store.patches(), direct.patches, atol=1e-6)


def test_another_model_is_refused_with_what_differs(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store")
    other = de.load_model(write_clip(tmp_path / "other", seed=7))
    with pytest.raises(
        ArtifactError, match=f"fingerprint: store '{tiny_clip.fingerprint}', given '{other.fingerprint}'"
    ):
        Store.open(tmp_path / "store", other)
    with pytest.raises(ArtifactError, match="different model"):
        build_store(other, photos, tmp_path / "store")
    with pytest.raises(ArtifactError, match="different model"):
        other.encode(store)


def test_half_precision_and_patches(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", patches=True, dtype="float16", shard_size=3)
    direct = tiny_clip.encode(photos, patches=True)
    assert direct.patches is not None
    assert str(pa_file(tmp_path / "store" / "00000-1.arrow")["patches"].type).count("halffloat") == 1
    assert store.features().dtype == np.float32
    np.testing.assert_allclose(store.features(), direct.features, atol=1e-3)
    np.testing.assert_allclose(store.patches([0, 7]), direct.patches[[0, 7]], atol=1e-3)


def test_options_must_fit_the_store(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    with pytest.raises(InputError, match="made with patches = False"):
        build_store(tiny_clip, photos, tmp_path / "store", patches=True)
    with pytest.raises(InputError, match="shard_size = 3, not 4"):
        build_store(tiny_clip, photos, tmp_path / "store", shard_size=4)
    for size in (0, 2**31):
        with pytest.raises(InputError, match="shard_size"):
            build_store(tiny_clip, photos, tmp_path / "new", shard_size=size)
    with pytest.raises(InputError, match="Did you mean 'float16'"):
        build_store(tiny_clip, photos, tmp_path / "new", dtype="flaot16")
    with pytest.raises(InputError, match="not a feature store"):
        build_store(tiny_clip, store, tmp_path / "new")
    with pytest.raises(InputError, match="not a feature store"):
        build_store(tiny_clip, photos, photos)
    with pytest.raises(InputError, match="no patch features"):
        store.patches([0])


def test_folder_that_cannot_be_written_is_said(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"file"):
        build_store(tiny_clip, photos, tmp_path / "file")
    build_store(tiny_clip, photos / "cat", tmp_path / "store")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        build_store(tiny_clip, photos, tmp_path / "store")
    monkeypatch.undo()
    assert len(build_store(tiny_clip, photos, tmp_path / "store")) == 8


def test_unfinished_store_opens_with_a_warning(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    calls = 0

    def stop(done: int, total: int | None) -> None:
        nonlocal calls
        calls += 1
        assert total == 8
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(tiny_clip, photos, tmp_path / "store", shard_size=3, progress=stop)
    with pytest.warns(UserWarning, match="incomplete"):
        store = Store.open(tmp_path / "store")
    assert 3 <= len(store) <= 6
    assert not store.complete


@pytest.mark.parametrize("record", ["", "[]", '{"format": "something else"}'])
def test_what_is_no_store_is_said(tmp_path: Path, record: str) -> None:
    with pytest.raises(ArtifactError, match="not a feature store"):
        Store.open(tmp_path / "absent")
    (tmp_path / "store.json").write_text(record)
    with pytest.raises(ArtifactError, match=r"store\.json"):
        Store.open(tmp_path)


def test_store_stands_in_for_images(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    (photos / "dog" / "bad.png").write_bytes(b"no picture")
    folder = tmp_path / "store"
    store = build_store(tiny_clip, photos, folder, shard_size=3, patches=True)
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog", "house"])
    good = [path for path in sorted(photos.rglob("*.png")) if path.name != "bad.png"]
    readable = [item for item in store.items() if not item.id.endswith("bad.png")]
    np.testing.assert_allclose(classifier.similarities(readable), classifier.similarities(good), atol=1e-6)

    direct = de.Detector(classifier, "delta-energy").calibrate(good, keep=0.5)
    for given in (store, folder, str(folder)):
        with pytest.warns(UserWarning, match="unreadable"):
            stored = de.Detector(classifier, "delta-energy").calibrate(given, keep=0.5)
        assert stored.threshold == pytest.approx(direct.threshold, abs=1e-4)
        verdicts, expected = stored.predict(given), direct.predict(photos)
        assert [u.id for u in verdicts.unreadable] == [u.id for u in expected.unreadable]
        assert [(v.path, v.label) for v in verdicts] == [(v.path, v.label) for v in expected]
        for verdict, other in zip(verdicts, expected):
            assert verdict.confidence == pytest.approx(other.confidence, abs=1e-5)

    # Some of its items, in any order, and two stores at once.
    some = [item for item in store.items() if item.label == "dog" and not item.id.endswith("bad.png")][::-1]
    np.testing.assert_array_equal(tiny_clip.encode(some).features, store.features([7, 6, 5, 4]))
    np.testing.assert_array_equal(tiny_clip.encode(store.select([7, 2])).features, store.features([7, 2]))
    assert len(tiny_clip.encode([store, folder]).features) == 16
    with pytest.raises(InputError, match="mixes"):
        tiny_clip.encode([store, good[0]])


def test_scores_that_need_more_than_features(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    from dataclasses import dataclass

    import torch

    from deltaenergy.core.needs import Need
    from deltaenergy.scores.base import Score, ScoreInputs, Scorer
    from deltaenergy.scoring import score_images
    from deltaenergy.source import as_source

    @dataclass(frozen=True)
    class PatchMean(Score):
        name = "patch-mean"
        needs = frozenset({Need.PATCHES})

        def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
            assert inputs.patches is not None
            return inputs.patches.mean(dim=(1, 2))

    @dataclass(frozen=True)
    class PixelMean(Score):
        name = "pixel-mean"
        needs = frozenset({Need.PIXELS})

        def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
            assert inputs.pixels is not None
            return inputs.pixels.mean(dim=(1, 2, 3))

    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    with_patches = build_store(tiny_clip, photos, tmp_path / "patches", patches=True)
    without = build_store(tiny_clip, photos, tmp_path / "plain")
    direct = score_images(classifier, [PatchMean(), de.make_score("mcm")], as_source(photos))
    stored = score_images(classifier, [PatchMean(), de.make_score("mcm")], as_source(with_patches))
    for name, values in direct.values.items():
        np.testing.assert_allclose(stored.values[name], values, atol=1e-6)
    with pytest.raises(InputError, match="`patches=True`"):
        score_images(classifier, [PatchMean()], as_source(without))
    with pytest.raises(InputError, match="needs pixels"):
        score_images(classifier, [PixelMean()], as_source(with_patches))


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), colour).save(buffer, "png")
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_webdataset_archives(tmp_path: Path, encoded: Counting) -> None:
    first, second = tmp_path / "0.tar", tmp_path / "1.tar"
    write_tar(
        first,
        {"a.png": png("red"), "a.cls": b"cat\n", "b.png": png("blue"), "b.json": json.dumps({"label": 3}).encode()},
    )
    write_tar(second, {"x/c.left.png": png("green"), "x/c.cls": b"7", "d.png": b"no picture", "notes.txt": b"hello"})
    store = build_store(encoded, f"{tmp_path}/*.tar", tmp_path / "store")
    assert store.ids == [f"{first}/a.png", f"{first}/b.png", f"{second}/x/c.left.png", f"{second}/d.png"]
    assert store.labels == ["cat", "3", "7", None]
    assert [u.id for u in store.unreadable] == [f"{second}/d.png"]
    colours = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue", "green")]
    np.testing.assert_allclose(store.features(store.readable), encoded.encode_images(colours), atol=1e-6)
    encoded.ids.clear()
    build_store(encoded, [first, second], tmp_path / "store")
    assert encoded.ids == []


def test_bad_archives(tiny_clip: Model, tmp_path: Path) -> None:
    good = tmp_path / "good.tar"
    write_tar(good, {f"{i}.png": png("red") + bytes(i) for i in range(6)})
    cut = tmp_path / "cut.tar"
    for length, whole in ((2100, 2), (2500, 2), (1600, 1)):  # in a header, in a picture
        cut.write_bytes(good.read_bytes()[:length])
        encoded = tiny_clip.encode(cut)
        assert len(encoded.items) == whole
        assert "damaged" in encoded.unreadable[-1].reason or "ends before" in encoded.unreadable[-1].reason
    (tmp_path / "text.tar").write_text("hello")
    with pytest.raises(InputError, match="tar archive"):
        de.load_images(tmp_path / "text.tar")
    with tarfile.open(tmp_path / "packed.tar", "w:gz") as archive:
        archive.add(good, "good.png")
    with pytest.raises(InputError, match="Compressed"):
        de.load_images(tmp_path / "packed.tar")
    write_tar(tmp_path / "none.tar", {"a.txt": b"hello"})
    with pytest.raises(InputError, match="contains no image"):
        de.load_images(tmp_path / "none.tar")
    with pytest.raises(InputError, match="does not exist"):
        de.load_images([tmp_path / "absent.tar"])


def test_hub_data_set(tmp_path: Path, encoded: Counting) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    rows = [{"bytes": png("red"), "path": None}, {"bytes": png("blue"), "path": None}]
    data = datasets.Dataset.from_dict({"image": rows, "label": [1, 0]}, features=features)
    store = build_store(encoded, data, tmp_path / "store")
    assert store.labels == ["dog", "cat"]
    colours = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    np.testing.assert_allclose(store.features(store.readable), encoded.encode_images(colours), atol=1e-6)
    encoded.ids.clear()
    build_store(encoded, data, tmp_path / "store")
    assert encoded.ids == []


def test_hub_data_set_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    from deltaenergy.data.formats.hub import hub_images

    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(
        {"image": [{"bytes": png("red"), "path": None}]}, features=datasets.Features(image=datasets.Image())
    )

    def load(path: str, split: str | None) -> object:
        if path != "owner/name":
            raise FileNotFoundError(f"Couldn't find {path}\nmore lines")
        return data if split == "test" else {"train": data, "test": data}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    assert [item.id for item in hub_images("hf:owner/name:test")] == ["hf:owner/name:test/image 0"]
    with pytest.raises(InputError, match="hf:owner/name:train"):
        hub_images("hf:owner/name")
    with pytest.raises(InputError, match=r"owner/other$"):
        hub_images("hf:owner/other")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"deltaenergy\[hub\]"):
        hub_images("hf:owner/name")


def test_pictures_in_memory(tmp_path: Path, encoded: Counting) -> None:
    pictures = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue", "red")]
    store = build_store(encoded, pictures, tmp_path / "store")
    assert len(encoded.ids) == 2
    np.testing.assert_array_equal(store.features([0]), store.features([2]))
    build_store(encoded, pictures, tmp_path / "store")
    assert len(encoded.ids) == 2


def test_evaluation_of_stores_equals_that_of_images(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    from deltaenergy.evaluation import evaluate

    other = tmp_path / "other"
    other.mkdir()
    for number, colour in enumerate(("red", "green", "blue", "white", "black")):
        Image.new("RGB", (20, 20), colour).save(other / f"{number}.png")
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    scores = ["msp", "mcm", "delta-energy", "delta-energy(tau=0.1,c=1)", "energy"]
    stores = [build_store(tiny_clip, folder, tmp_path / f"{folder.name}.store") for folder in (photos, other)]
    direct = evaluate(classifier, scores, [("id", photos)], open_sets=[("open", other)])
    stored = evaluate(classifier, scores, [("id", stores[0])], open_sets=[("open", str(stores[1].path))])
    assert [row.accuracy.value for row in stored.accuracy] == [row.accuracy.value for row in direct.accuracy]
    assert len(stored.detection) == len(direct.detection) == len(scores)
    for row, expected in zip(stored.detection, direct.detection):
        assert row.score == expected.score
        for name, estimate in row.metrics.items():
            assert estimate.value == pytest.approx(expected.metrics[name].value, abs=1e-6)


def test_many_scores_read_the_features_once(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    from deltaenergy.scoring import score_images
    from deltaenergy.source import as_source

    taken: list[int] = []

    class Watched(Store):
        def shard(self, position: int, **options: bool) -> Any:
            taken.append(position)
            return super().shard(position, **options)

    build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    store = Watched.open(tmp_path / "store")
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog", "house"])
    specs = ["msp", "mcm", "energy", "entropy", "max-logit", *(f"delta-energy(c={c})" for c in range(1, 4))]
    specs += [f"delta-energy(tau={tau})" for tau in (0.02, 0.1, 0.5, 1.0)]
    scored = score_images(classifier, [de.make_score(spec) for spec in specs], as_source(store))
    assert len(scored.values) == 12
    assert taken == [0, 1, 2]
