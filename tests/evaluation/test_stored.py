"""Evaluating feature stores: what images give, without an object for each image."""

from __future__ import annotations

import contextlib
import gc
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deltaenergy import ZeroShotClassifier, build_store
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.evaluation import evaluate
from deltaenergy.evaluation import run as run_module
from deltaenergy.evaluation.disagreement import pooled_scores
from deltaenergy.report import write_report
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import Encoded, bind, deal_folds, fit, known_images, score_images
from deltaenergy.source import as_source
from deltaenergy.store.store import Store, StoredItems
from tests.colours import ColourModel, paint_sets

CLASSES = ["red", "green", "blue"]
SETS = ("known", "dark", "grey")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sets of pictures, one of them broken, and a store of each in several shards."""
    sets = paint_sets(tmp_path / "pictures")
    next((sets / "known").rglob("*.png")).write_bytes(b"")
    for name in SETS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build_store(ColourModel(), sets / name, sets / f"{name}.store", shard_size=4)
    return sets


@pytest.fixture
def classifier() -> ZeroShotClassifier:
    return ZeroShotClassifier(ColourModel(), CLASSES)


def measured(classifier, folder, ending="", scores=("mcm", "energy"), **options):
    given = [[(name, folder / f"{name}{ending}")] for name in SETS]
    return evaluate(classifier, list(scores), *given, **options)


@pytest.mark.parametrize("scores", [("mcm", "energy"), ("react", "mcm"), ("mahalanobis",), ("knn",)])
def test_a_store_gives_what_its_pictures_give(classifier, folder, scores):
    ours, theirs = (measured(classifier, folder, ending, scores) for ending in (".store", ""))
    assert all(isinstance(one.scored.items, StoredItems) for one in ours.sets)
    first, second = ours.to_dict(), theirs.to_dict()
    for key in ("accuracy", "kept", "detection", "classification", "unreadable"):
        assert _rounded(first[key]) == _rounded(second[key]), key
    for one, two in zip(ours.sets, theirs.sets):
        assert [item.id for item in one.scored.items] == [item.id for item in two.scored.items]
        assert [item.label for item in one.scored.items] == [item.label for item in two.scored.items]
        np.testing.assert_array_equal(one.labels, two.labels)
        assert len(one) == len(two) == len(one.scored.predicted)
    assert len(ours.unreadable) == 1


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return round(value, 5) if isinstance(value, float) else value


def test_items_are_those_of_the_store(folder):
    store = Store.open(folder / "known.store")
    items = StoredItems(store)
    ids, labels = ([values[row] for row in store.readable] for values in (store.ids, store.labels))
    assert [item.id for item in items] == ids and len(items) == len(ids) > 8
    assert [items[i].id for i in range(len(items))] == ids
    assert [items[-1].id, items[len(items) // 2].label] == [ids[-1], labels[len(items) // 2]]
    assert [item.id for item in items[3:9]] == ids[3:9]
    assert [items.label_names[code] for code in items.label_codes] == labels
    assert items.unreadable == 1
    with pytest.raises(IndexError):
        items[len(items)]


def test_hashes_of_ids_come_by_shard_and_are_not_held(folder):
    items = StoredItems(Store.open(folder / "known.store"))
    assert np.concatenate(list(items.id_hashes())).tolist() == [hash(item.id) for item in items]


def test_what_is_the_same_for_all_images_of_a_set_is_not_stored_for_each(classifier, folder):
    found = measured(classifier, folder, ".store", ("mcm",), resamples=0)
    opened = found.sets[-1]
    assert len(opened.labels) == len(opened) and (opened.labels == -1).all() and opened.labels.strides == (0,)
    for one in found.sets:
        assert len(one.counted) == len(one) and one.counted.all() and one.counted.strides == (0,)
        values = found.values("mcm", one.name)
        assert np.shares_memory(values, one.scored.values["mcm"])


def test_a_store_of_another_model_is_refused(classifier, folder):
    other = ColourModel()
    other.fingerprint = "another"
    with pytest.raises(ArtifactError, match="different model"):
        measured(ZeroShotClassifier(other, CLASSES), folder, ".store")


def test_a_label_that_is_no_class_is_told_before_anything_is_scored(folder):
    with pytest.raises(InputError, match=r"'green'.* 2 classes.* in all"):
        measured(ZeroShotClassifier(ColourModel(), ["red", "blue"]), folder, ".store")


def test_images_of_the_same_name_in_two_stores_are_told_apart(classifier, folder):
    shutil.copytree(folder / "known.store", folder / "copy.store")
    given = [[(name, folder / f"{name}.store")] for name in ("known", "copy", "grey")]
    found = evaluate(classifier, "mcm", *given)
    ids = [item.id for one in found.sets for item in one.scored.items]
    count = len(found.sets[0])
    assert len(set(ids)) == len(ids) and ids[count : 2 * count] == [f"{name} (2)" for name in ids[:count]]
    assert found.accuracy[0].accuracy == found.accuracy[1].accuracy


def out_of_fold(classifier, spec, store, every, items=None):
    """The value of each image: those that teach by a scorer fitted on other folds, all others in turns."""
    labels, features = [store.labels[row] for row in store.readable], store.features(store.readable)
    taught = np.arange(0, len(labels), every)
    dealt = deal_folds([labels[row] for row in taught])
    scorer_of = np.arange(len(labels)) % (1 + dealt.max())
    scorer_of[taught] = dealt
    values = np.empty(len(labels))
    for fold in range(1 + dealt.max()):
        seen = taught[dealt != fold]
        lesson = features[seen] if items is None else [items[row] for row in seen]
        bound = bind(classifier, [make_score(spec)])
        scorers = fit(bound, known_images([Encoded(classifier, bound, as_source(lesson))], bound))
        found = score_images(classifier, scorers, as_source(features)).values[make_score(spec).spec]
        values[scorer_of == fold] = found[scorer_of == fold]
    return values


def test_scores_learn_from_evenly_spaced_images_of_a_large_store(classifier, folder, monkeypatch):
    store = Store.open(folder / "known.store")
    most = 4
    monkeypatch.setattr(run_module, "MOST_LEARNED", most)
    every = -(-len(store.readable) // most)
    found = measured(classifier, folder, ".store", ["react"])
    expected = out_of_fold(classifier, "react", store, every)
    np.testing.assert_allclose(found.sets[0].scored.values["react"], expected, rtol=1e-5)
    monkeypatch.setattr(run_module, "MOST_LEARNED", 1000)
    all_of_them = measured(classifier, folder, ".store", ["react"]).sets[0].scored.values["react"]
    assert np.abs(all_of_them - expected).max() > 1e-6, "so that the two can be told apart"


def test_labels_of_the_images_that_teach(tiny_clip, folder, monkeypatch):
    """InterNeg learns from images and their classes: here from every second one."""
    classifier = ZeroShotClassifier(tiny_clip, CLASSES)
    store = build_store(tiny_clip, folder / "known", folder / "tiny.store", shard_size=5)
    monkeypatch.setattr(run_module, "MOST_LEARNED", -(-len(store.readable) // 2))
    found = evaluate(classifier, "interneg", folder / "tiny.store").sets[0]
    (spec,) = found.scored.values
    item_of = {item.id: item for item in store.items()}
    expected = out_of_fold(classifier, "interneg", store, 2, [item_of[store.ids[row]] for row in store.readable])
    np.testing.assert_allclose(found.scored.values[spec], expected, rtol=1e-3, atol=1e-4)


def test_several_stores_teach_as_one(classifier, folder):
    given = [("known", folder / "known.store"), ("dark", folder / "dark.store")]
    found = evaluate(classifier, "react", given, (), folder / "grey.store")
    pictures = [(name, folder / name) for name in ("known", "dark")]
    expected = evaluate(classifier, "react", pictures, (), folder / "grey")
    assert found.detection[0].metrics["auroc"].value == pytest.approx(expected.detection[0].metrics["auroc"].value)


def test_a_report_shows_the_images_of_a_store(classifier, folder):
    page = folder / "report.html"
    write_report(measured(classifier, folder, ".store"), page)
    text = page.read_text(encoding="utf-8")
    assert Path(StoredItems(Store.open(folder / "grey.store"))[0].id).name in text


def test_pooled_rows_leave_out_what_has_no_number(classifier, folder):
    found = measured(classifier, folder, ".store")
    found.sets[1].scored.values["mcm"][2] = np.nan
    place, values = pooled_scores(found)
    flat = [(one.name, row) for one in found.sets for row in range(len(one))]
    flat.remove(("dark", 2))
    assert [(one.name, row) for one, row in map(place, range(len(flat)))] == flat
    assert len(values["mcm"]) == len(flat)


def test_no_object_for_each_image_is_held(classifier, folder, monkeypatch):
    """While sets are scored, and when all is measured, there are items of a few shards, of four images each."""
    alive: list[int] = []

    def count(*_: object) -> None:
        alive.append(sum(type(one) is ImageItem for one in gc.get_objects()))

    @contextlib.contextmanager
    def shown(_: str) -> Iterator[object]:
        yield count

    monkeypatch.setattr("deltaenergy.evaluation.run.stage", shown)

    gc.collect()
    count()
    before = alive.pop()
    found = measured(classifier, folder, ".store", ["react", "mcm"])
    found.to_dict()
    count()
    assert sum(map(len, found.sets)) > 40 and len(alive) > 10
    assert max(alive) - before <= 12
