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
from deltaenergy import FeatureStore, Model, build_store
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.encoding import EncodedImages
from deltaenergy.store.folder import place_at
from deltaenergy.store.holding import Hold
from tests.checkpoints import write_clip


def contents(folder: Path) -> dict[str, str]:
    """Every file of a store with the hash of its bytes."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


class Counting:
    """A model that counts the images it is given to encode."""

    def __init__(self, model: Model) -> None:
        self.ids: list[str] = []
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, images: object, **options: Any) -> EncodedImages:
        self.ids += [item.id for item in de.load_images(images)]
        return self._model.encode(images, **options)


@pytest.fixture
def encoded(tiny_clip: Model) -> Counting:
    return Counting(tiny_clip)


def test_rows_are_the_images_features(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    paths = sorted(photos.rglob("*.png"))
    assert store.ids == [path.as_posix() for path in paths]
    assert store.labels == [path.parent.name for path in paths]
    assert store.domains == [None] * 8
    assert store.unreadable == []
    assert store.complete
    # The independent value: transformers-checked encode_images, in batches of the shards' sizes.
    expected = np.concatenate([tiny_clip.encode_images(paths[i : i + 3]) for i in (0, 3, 6)])
    np.testing.assert_array_equal(store.features, expected)
    assert [len(np.load(path)) for path in sorted((tmp_path / "store").glob("*.features.npy"))] == [3, 3, 2]
    np.testing.assert_array_equal(np.concatenate(list(store.blocks(2))), store.features)
    np.testing.assert_array_equal(store.take([7, 0, 0, 4]), expected[[7, 0, 0, 4]])


def test_rows_are_read_from_the_file_without_a_copy(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store")
    for view in (store.features, *store.blocks(3), store.take([2, 3, 4])):
        assert not view.flags.owndata
        assert not view.flags.writeable
    assert all(np.shares_memory(block, store.features) for block in store.blocks(3))


def test_second_run_encodes_nothing(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos, tmp_path / "store", shard_size=3)
    assert len(encoded.ids) == 8
    before = contents(tmp_path / "store")
    build_store(encoded, photos, tmp_path / "store")
    assert len(encoded.ids) == 8
    assert contents(tmp_path / "store") == before


def test_images_can_be_added(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos / "cat", tmp_path / "store", shard_size=3)
    store = build_store(encoded, photos / "dog", tmp_path / "store")
    assert len(encoded.ids) == 8
    np.testing.assert_allclose(store.features, encoded.encode_images(store.ids), atol=1e-6)


def test_equal_pictures_are_encoded_once(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    shutil.copy(photos / "cat" / "0.png", photos / "dog" / "copy.png")  # in the same shard, or in a later one
    for size, name in ((100, "one"), (2, "many")):
        encoded.ids.clear()
        store = build_store(encoded, photos, tmp_path / name, shard_size=size)
        assert len(encoded.ids) == 8
        assert len(store) == 9
        copy, original = (store.ids.index((photos / p).as_posix()) for p in ("dog/copy.png", "cat/0.png"))
        np.testing.assert_array_equal(store.features[copy], store.features[original])
        assert store.labels[copy] == "dog"
        assert sum(len(np.load(path)) for path in (tmp_path / name).glob("*.features.npy")) == 8


def test_changed_files_are_encoded_again(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    before = build_store(encoded, photos, tmp_path / "store", shard_size=3).features.copy()
    changed = photos / "cat" / "2.png"
    Image.new("RGB", (30, 30), "red").save(changed)
    os.utime(changed, ns=(1, 1))
    encoded.ids.clear()
    store = build_store(encoded, photos, tmp_path / "store")
    assert encoded.ids == [changed.as_posix()]
    assert len(store) == 8
    assert store.ids[2] == changed.as_posix()
    np.testing.assert_allclose(store.features[2], encoded.encode_images([changed])[0], atol=1e-6)
    np.testing.assert_array_equal(np.delete(store.features, 2, 0), np.delete(before, 2, 0))


def test_touched_file_is_not_encoded_again(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    build_store(encoded, photos, tmp_path / "store")
    os.utime(photos / "cat" / "2.png", ns=(1, 1))
    encoded.ids.clear()
    assert len(build_store(encoded, photos, tmp_path / "store")) == 8
    assert encoded.ids == []


def test_unreadable_images_are_recorded_and_retried_when_asked(photos: Path, tmp_path: Path, encoded: Counting) -> None:
    (photos / "dog" / "bad.png").write_bytes(b"no picture")
    missing = (photos / "dog" / "gone.png").as_posix()
    images = [*sorted(photos.rglob("*.png")), missing]
    store = build_store(encoded, images, tmp_path / "store", shard_size=4)
    assert [u.id for u in store.unreadable] == [(photos / "dog" / "bad.png").as_posix(), missing]
    assert "not an image" in store.unreadable[0].reason
    assert len(store) == 8
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
    assert missing in store.ids


def test_another_model_is_refused_with_what_differs(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store")
    other = de.load_model(write_clip(tmp_path / "other", seed=7))
    with pytest.raises(
        ArtifactError, match=f"fingerprint: store '{tiny_clip.fingerprint}', given '{other.fingerprint}'"
    ):
        FeatureStore.open(tmp_path / "store", other)
    with pytest.raises(ArtifactError, match="another model"):
        build_store(other, photos, tmp_path / "store")
    with pytest.raises(ArtifactError, match="another model"):
        other.encode(store)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "index"])
def test_damaged_shard_is_found_and_encoded_again(photos: Path, tmp_path: Path, encoded: Counting, damage: str) -> None:
    folder = tmp_path / "store"
    build_store(encoded, photos, folder, shard_size=3)
    whole = contents(folder)
    array, index = folder / "00001.features.npy", folder / "00001.index.parquet"
    data = bytearray(array.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
        array.write_bytes(data)
        assert FeatureStore.open(folder).verify() == ["00001.features.npy"]
    elif damage == "cut":
        array.write_bytes(data[:-40])
    elif damage == "remove":
        array.unlink()
    else:
        index.write_bytes(index.read_bytes()[:-9])
    if damage in {"cut", "remove"}:
        with pytest.raises(ArtifactError, match=r"00001\.features\.npy"):
            _ = FeatureStore.open(folder).features
    encoded.ids.clear()
    with pytest.warns(UserWarning, match="damaged"):
        store = build_store(encoded, photos, folder)
    assert len(encoded.ids) == 3
    assert contents(folder) == whole
    assert store.verify() == []


def test_damaged_images_that_are_not_given_now_are_not_dropped(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    build_store(tiny_clip, photos / "cat", folder)
    array = folder / "00000.features.npy"
    array.write_bytes(array.read_bytes()[:-1] + b"x")
    before = contents(folder)
    with pytest.raises(ArtifactError, match=r"damaged.* 4 of its images"):
        build_store(tiny_clip, photos / "dog", folder)
    assert contents(folder) == before


def test_half_precision_and_patches(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", patches=True, dtype="float16", shard_size=3)
    direct = tiny_clip.encode(photos, patches=True)
    assert direct.patches is not None
    assert np.load(tmp_path / "store" / "00000.patches.npy").dtype == np.float16
    assert store.features.dtype == np.float32
    np.testing.assert_allclose(store.features, direct.features, atol=1e-3)
    np.testing.assert_allclose(store.take_patches([0, 7]), direct.patches[[0, 7]], atol=1e-3)


def test_options_must_fit_the_store(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    with pytest.raises(InputError, match="made with patches = False"):
        build_store(tiny_clip, photos, tmp_path / "store", patches=True)
    with pytest.raises(InputError, match="shard_size = 3, not 4"):
        build_store(tiny_clip, photos, tmp_path / "store", shard_size=4)
    with pytest.raises(InputError, match="Did you mean 'float16'"):
        build_store(tiny_clip, photos, tmp_path / "new", dtype="flaot16")
    with pytest.raises(InputError, match="feature store already"):
        build_store(tiny_clip, store, tmp_path / "new")
    with pytest.raises(InputError, match="holds no feature store"):
        build_store(tiny_clip, photos, photos)
    with pytest.raises(InputError, match="no patch features"):
        store.take_patches([0])


def test_a_run_that_holds_the_store_alone_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "store").mkdir()
    with (tmp_path / "store" / ".deltaenergy.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.warns(UserWarning, match=r"Another run.*waiting"),
            pytest.raises(InputError, match="Another run is writing"),
            Hold(place_at(tmp_path / "store"), patience=0.2),
        ):
            pass


def test_folder_that_cannot_be_written_is_said(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"File exists|Not a directory"):
        build_store(tiny_clip, photos, tmp_path / "file")
    build_store(tiny_clip, photos / "cat", tmp_path / "store")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
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
    with pytest.warns(UserWarning, match="not finished"):
        store = FeatureStore.open(tmp_path / "store")
    assert 3 <= len(store) <= 6
    assert not store.complete


@pytest.mark.parametrize("record", ["", "[]", '{"format": "something else"}'])
def test_what_is_no_store_is_said(tmp_path: Path, record: str) -> None:
    with pytest.raises(ArtifactError, match="not a folder"):
        FeatureStore.open(tmp_path / "absent")
    (tmp_path / "store.json").write_text(record)
    with pytest.raises(ArtifactError, match=r"store\.json"):
        FeatureStore.open(tmp_path)


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
    some = [item for item in store.items() if item.label == "dog"][::-1]
    np.testing.assert_array_equal(tiny_clip.encode(some).features, store.take([7, 6, 5, 4]))
    assert len(tiny_clip.encode([store, folder]).features) == 16
    with pytest.raises(InputError, match="mixes"):
        tiny_clip.encode([store, good[0]])


def test_scores_that_need_more_than_features(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    from dataclasses import dataclass

    import torch

    from deltaenergy.core.needs import Need
    from deltaenergy.scores.base import Score, ScoreInputs, Scorer
    from deltaenergy.scoring import score_images

    @dataclass(frozen=True)
    class PatchMean(Score):
        name = "patch-mean"
        requires = frozenset({Need.PATCHES})

        def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
            assert inputs.patches is not None
            return inputs.patches.mean(dim=(1, 2))

    @dataclass(frozen=True)
    class PixelMean(Score):
        name = "pixel-mean"
        requires = frozenset({Need.PIXELS})

        def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
            assert inputs.pixels is not None
            return inputs.pixels.mean(dim=(1, 2, 3))

    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    with_patches = build_store(tiny_clip, photos, tmp_path / "patches", patches=True)
    without = build_store(tiny_clip, photos, tmp_path / "plain")
    direct = score_images(classifier, [PatchMean(), de.make_score("mcm")], photos)
    stored = score_images(classifier, [PatchMean(), de.make_score("mcm")], with_patches)
    for name, values in direct.values.items():
        np.testing.assert_allclose(stored.values[name], values, atol=1e-6)
    with pytest.raises(InputError, match="`patches=True`"):
        score_images(classifier, [PatchMean()], without)
    with pytest.raises(InputError, match="needs pixels"):
        score_images(classifier, [PixelMean()], with_patches)


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
    assert store.ids == [f"{first}/a.png", f"{first}/b.png", f"{second}/x/c.left.png"]
    assert store.labels == ["cat", "3", "7"]
    assert [u.id for u in store.unreadable] == [f"{second}/d.png"]
    colours = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue", "green")]
    np.testing.assert_allclose(store.features, encoded.encode_images(colours), atol=1e-6)
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
    np.testing.assert_allclose(store.features, encoded.encode_images(colours), atol=1e-6)
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
    np.testing.assert_array_equal(store.features[0], store.features[2])
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

    taken: list[int] = []

    class Watched(FeatureStore):
        def take(self, rows: Any) -> Any:
            taken.extend(rows)
            return super().take(rows)

    build_store(tiny_clip, photos, tmp_path / "store", shard_size=3)
    store = Watched.open(tmp_path / "store")
    classifier = de.ZeroShotClassifier(tiny_clip, ["cat", "dog", "house"])
    specs = ["msp", "mcm", "energy", "entropy", "max-logit", *(f"delta-energy(c={c})" for c in range(1, 4))]
    specs += [f"delta-energy(tau={tau})" for tau in (0.02, 0.1, 0.5, 1.0)]
    scored = score_images(classifier, [de.make_score(spec) for spec in specs], store)
    assert len(scored.values) == 12
    assert sorted(taken) == list(range(8))
