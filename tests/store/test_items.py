"""A feature store for functions that take images, and for those that go through it one shard at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltaenergy import (
    Detector,
    Model,
    PrecomputedClassifier,
    PrecomputedModel,
    Store,
    ZeroShotClassifier,
    build_store,
    make_score,
)
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.encoding import stream_batches
from deltaenergy.scoring import score_images
from deltaenergy.source import Rows, as_source
from tests.checkpoints import write_clip
from tests.cross_fitting import cross_fitted


@pytest.fixture
def store(tiny_clip: Model, photos: Path, tmp_path: Path) -> Store:
    """Eight pictures and a broken one, in shards of three."""
    (photos / "cat" / "broken.png").write_bytes(b"no picture")
    return build_store(tiny_clip, photos, tmp_path / "photos.store", shard_size=3, patches=True)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_it_is_the_store_in_order(store: Store, tiny_clip: Model, size: int) -> None:
    parts = list(stream_batches(tiny_clip, as_source(store.path), patches=True, batch_size=size))
    assert max(len(part.items) for part in parts) <= size
    for name, values in (("id", store.ids), ("label", store.labels)):
        assert [getattr(item, name) for part in parts for item in part.items] == [values[i] for i in store.readable]
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), store.features(store.readable))
    patches = np.concatenate([part.patches for part in parts if part.patches is not None])
    np.testing.assert_array_equal(patches, store.patches(store.readable))
    assert [image for part in parts for image in part.unreadable] == store.unreadable


def test_scores_are_those_of_the_opened_store(store: Store, tiny_clip: Model) -> None:
    classifier = ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    scores = [make_score(spec) for spec in ("delta-energy", "gl-mcm", "react")]
    seen: list[tuple[int, int | None]] = []
    streamed, _ = cross_fitted(classifier, scores, store.path, progress=lambda done, total: seen.append((done, total)))
    opened, _ = cross_fitted(classifier, scores, store)
    assert [item.id for item in streamed.items] == [item.id for item in opened.items]
    assert streamed.unreadable == opened.unreadable and len(streamed.unreadable) == 1
    for spec, values in opened.values.items():
        np.testing.assert_allclose(streamed.values[spec], values, rtol=1e-5)
    assert seen[-1] == (9, 9)


def test_one_shard_is_read_when_the_first_verdict_is_asked_for(store: Store, tiny_clip: Model) -> None:
    detector = Detector(ZeroShotClassifier(tiny_clip, ["cat", "dog"])).calibrate(store.path)
    verdicts = list(detector.predict(store.path))
    first, last = (Path(store.path) / store.manifest.shards[position].name for position in (0, 2))
    ids = [store.ids[row] for row in store.readable]
    stream = detector.stream(store.path)
    found = [next(stream)]
    # A file whose turn has not come is read as it is then; what was read is not read again.
    record, data = store.manifest.shards[2], bytearray(last.read_bytes())
    rows = np.frombuffer(bytes(data[record.start : record.stop]), np.float32)[: 3 * tiny_clip.feature_dim].reshape(
        3, -1
    )
    data[record.start : record.start + rows.nbytes] = rows[::-1].tobytes()
    last.with_name("swapped").write_bytes(data)
    last.with_name("swapped").replace(last)
    first.unlink()
    found += stream
    assert [verdict.path for verdict in found] == ids
    assert len(stream.unreadable) == 1
    scores, expected = ([verdict.score for verdict in some] for some in (found, verdicts))
    assert scores[:-3] == expected[:-3]
    np.testing.assert_allclose(scores[-3:], expected[-3:][::-1], rtol=1e-5)


def test_what_does_not_fit_is_refused_before_anything_is_read(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.store"
    build_store(tiny_clip, photos, path, shard_size=3)
    with pytest.raises(InputError, match="`patches=True`"):
        stream_batches(tiny_clip, as_source(path), patches=True)
    from deltaenergy import load_model

    with pytest.raises(ArtifactError, match="different model"):
        stream_batches(load_model(write_clip(tmp_path / "other", seed=5)), as_source(path))
    with pytest.raises(InputError, match="pixels"):
        score_images(ZeroShotClassifier(tiny_clip, ["cat"]), [make_score("odin")], as_source(path))
    shard = path / "00001-1.arrow"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match=r"00001-1\.arrow"):
        as_source(path)


def test_what_is_taken_for_a_store(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "a.store")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (store.path, str(store.path), "~/a.store", store):
        source = as_source(given)
        assert isinstance(source, Store) and source.ids == store.ids
    assert isinstance(as_source([store.path]), Rows) and not isinstance(as_source(photos), Store)
    for wrong in (None, "nowhere", "a\0b"):
        with pytest.raises(InputError):
            as_source(wrong)


def test_an_open_store_is_as_good_as_its_path(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    store = build_store(tiny_clip, photos, tmp_path / "store")
    stands_in = PrecomputedModel(tiny_clip.feature_dim, fingerprint=store.fingerprint)
    vectors = tiny_clip.encode_texts(["a cat", "a dog"])
    detector = Detector(PrecomputedClassifier(vectors, ["cat", "dog"], model=stands_in), "mcm").calibrate(store.path)
    by_path = [verdict.score for verdict in detector.predict(store.path)]
    assert [verdict.score for verdict in detector.predict(store)] == by_path
    for given in ([store.path], store.items(), store.select(range(len(store))), store.features()):
        assert [verdict.score for verdict in detector.predict(given)] == by_path
    assert [verdict.score for verdict in detector.predict(store.select([5, 2]))] == [by_path[5], by_path[2]]
