"""Python as people type it: classes in one text, one score, one folder; what objects say of themselves; mistakes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.core.text import in_table
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import Group
from deltaenergy.evaluation.sets import named_sets
from deltaenergy.scale.build import build_store


@pytest.fixture(scope="module")
def clf(tiny_clip: de.TowerModel) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, "dog, cat")


def test_class_lists_in_one_text(tiny_clip: de.TowerModel, photos: Path, tmp_path: Path) -> None:
    assert de.ZeroShotClassifier(tiny_clip, " dog , red car,").classes == ("dog", "red car")
    tuned = de.tune(tiny_clip, "dog,cat", photos, method="task-res", shots=2, recipe={"epochs": 1})
    assert tuned.classes == ("dog", "cat")
    vectors = np.eye(2, 16, dtype=np.float32)
    assert de.PrecomputedClassifier(vectors, "dog, cat").classes == ("dog", "cat")
    assert de.ZeroShotClassifier(tiny_clip, "dog, cat").with_classes("x, y, z").classes == ("x", "y", "z")
    found = de.tune_detector(tiny_clip, photos, tmp_path / "out", "task-res", classes="dog, cat", recipe={"epochs": 1})
    assert found.detector.classifier.classes == ("dog", "cat")


@pytest.mark.parametrize(("classes", "message"), [("dog", r"Did you mean \['dog'\]"), (", ,", "empty"), (3, "not int")])
def test_other_texts_are_no_lists(tiny_clip: de.TowerModel, classes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        de.ZeroShotClassifier(tiny_clip, classes)


def test_one_score_and_one_folder(clf: de.Classifier, photos: Path) -> None:
    """The short form measures what the long form does."""
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(6)]
    short = de.evaluate(clf, "mcm", photos, open_sets=noise, resamples=10)
    long = de.evaluate(clf, ["mcm"], [("photos", photos)], (), [("open", noise)], resamples=10)
    named = de.evaluate(clf, de.make_score("mcm"), {"photos": photos}, open_sets={"open": noise}, resamples=10)
    assert short.to_dict()["detection"] == long.to_dict()["detection"] == named.to_dict()["detection"]
    assert [one.name for one in short.sets] == ["photos", "open"]


def test_what_sets_may_be(tmp_path: Path) -> None:
    def names(given: Any) -> list[tuple[str, Any]]:
        return [(one.name, one.images) for one in named_sets(given, Group.OPEN)]

    assert names(()) == names([]) == names({}) == []
    assert names("a/b") == [("b", "a/b")]
    assert names(tmp_path) == [(tmp_path.name, tmp_path)]
    assert names(("n", "a")) == [("n", "a")]
    assert names([("n", "a"), ["m", "b"]]) == names({"n": "a", "m": "b"}) == [("n", "a"), ("m", "b")]
    assert names(iter([("n", "a")])) == [("n", "a")]
    assert names(["a.png", "b.png"]) == [("open", ["a.png", "b.png"])]


def test_probabilities_and_the_best_classes(clf: de.Classifier, photos: Path) -> None:
    """softmax(L·s) in float64, and its order."""
    logits = clf.similarities(photos).astype(np.float64) * clf.model.logit_scale
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(clf.predict_proba(photos), expected, atol=1e-4)
    best = clf.top_k(photos, k=1)
    assert [row[0][0] for row in best] == [clf.classes[i] for i in expected.argmax(axis=1)]
    every = clf.top_k(photos, k=5)
    assert all(len(row) == 2 and row[0][1] >= row[1][1] for row in every)
    np.testing.assert_allclose([sum(p for _, p in row) for row in every], 1, atol=1e-5)
    with pytest.raises(InputError, match="k must be at least 1"):
        clf.top_k(photos, k=0)


def test_what_objects_say_of_themselves(
    tiny_clip: de.TowerModel, clf: de.Classifier, photos: Path, tmp_path: Path
) -> None:
    assert "<ClipModel: name " in repr(tiny_clip) and "features 16; logit scale 100" in repr(tiny_clip)
    assert repr(clf).startswith("<ZeroShotClassifier: classes 2 (dog, cat); method zero-shot")
    many = de.ZeroShotClassifier(tiny_clip, [f"class {i}" for i in range(9)])
    assert "9 (class 0, class 1, class 2, class 3, class 4, …)" in repr(many)
    store = build_store(tiny_clip, photos, tmp_path / "s")
    assert "images 8; features 16" in repr(store)
    for thing in (tiny_clip, clf, store):
        assert thing._repr_html_().startswith("<table>")


def test_notebook_tables_are_escaped() -> None:
    page = in_table("T", {"classes": "<script>alert('x')</script>", "<b>": "&"})
    assert "<script>" not in page and "&lt;script&gt;" in page and "<th style='text-align:left'>&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, c: de.ZeroShotClassifier("lite", ["a"]), r"load_model\('lite'\)"),
        (lambda m, c: de.ZeroShotClassifier(np.eye(3), ["a"]), "not ndarray.*PrecomputedModel"),
        (lambda m, c: de.tune("lite", "a, b", "x"), "tune needs a model"),
        (lambda m, c: de.evaluate(m, "mcm", "x"), "ZeroShotClassifier"),
        (lambda m, c: de.evaluate(np.eye(3), "mcm", "x"), r"delta_energy\(similarities\)"),
        (lambda m, c: de.evaluate(7, "mcm", "x"), "not 7"),
        (lambda m, c: de.evaluate("clf", "mcm", "x"), "`by` clf is not a folder"),
        (lambda m, c: de.score("x", "dog,cat"), "pass a list"),
        (lambda m, c: de.PrecomputedClassifier("clf", "a, b"), "one row per class"),
    ],
)
def test_things_of_another_kind_are_told_apart(
    tiny_clip: de.TowerModel, clf: de.Classifier, call: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(tiny_clip, clf)


@pytest.fixture(scope="module")
def det(clf: de.Classifier) -> de.Detector:
    rng = np.random.default_rng(1)
    return de.Detector(clf, "mcm").calibrate([rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(40)])


def test_a_detector_gives_what_its_classifier_gives(det: de.Detector, photos: Path) -> None:
    """Its own bits are those of its verdicts (tests/test_parity.py)."""
    np.testing.assert_allclose(det.predict_proba(photos), det.classifier.predict_proba(photos), atol=1e-6)
    best = [row[0] for row in det.top_k(photos, k=2)]
    found = det.predict(photos)
    assert [label for label, _ in best] == [v.label for v in found]
    assert [p for _, p in best] == [v.confidence for v in found]


def test_verdicts_as_a_data_frame(det: de.Detector, photos: Path) -> None:
    pytest.importorskip("pandas")
    found = det.predict(photos)
    frame = found.to_pandas()
    assert list(frame.columns)[:3] == ["path", "label", "confidence"] and len(frame) == 8
    assert frame.loc[3, "score"] == found[3].score and bool(frame.loc[3, "is_ood"]) is found[3].is_ood
    assert found.to_table().to_pydict() == frame.replace({float("nan"): None}).to_dict("list")
    assert len(det.predict([]).to_pandas()) == 0


def test_what_detectors_and_results_say_of_themselves(det: de.Detector, photos: Path) -> None:
    fresh = de.Detector(det.classifier, "mcm")
    assert "threshold none yet, call calibrate" in repr(fresh)
    assert repr(det).startswith("<Detector: score mcm") and "by 40 images" in repr(det)
    found = det.predict([photos, photos / "none.png"])
    unknown = sum(v.is_ood for v in found)
    assert repr(found) == f"<Verdicts: images 8; known {8 - unknown}; none of these {unknown}; unreadable 1>"
    measured = de.evaluate(det.classifier, "mcm", photos, open_sets=[np.zeros((9, 9, 3), np.uint8)] * 3, resamples=10)
    assert "photos (known, 8 images), open (open, 3 images)" in repr(measured) and "best AUROC" in repr(measured)
    for thing in (det, found, measured):
        assert thing._repr_html_().startswith("<table>")


def test_figures_need_matplotlib(det: de.Detector, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for plot in (det.plot, det.predict(photos).plot):
        with pytest.raises(InputError, match="pip install matplotlib"):
            plot()


def test_figures_show_the_scores(det: de.Detector, photos: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    found = det.predict(photos)
    axes = det.plot(found)
    bars = axes.containers
    assert [sum(bar.get_height() for bar in group) for group in bars] == [40, 8]
    assert axes.lines[0].get_xdata()[0] == det.threshold
    assert found.plot(axes) is axes
    noise = [np.zeros((9, 9, 3), np.uint8)] * 3
    measured = de.evaluate(det.classifier, "mcm", photos, open_sets=noise, resamples=10)
    curve = measured.plot().lines[0]
    expected = measured.ranked(measured.detection[0]).roc_curve()
    np.testing.assert_array_equal(curve.get_xdata(), expected.ood_kept)
    assert curve.get_label().startswith("mcm, photos against open"), "several scores may be drawn into one figure"
    with pytest.raises(InputError, match="was not evaluated"):
        measured.plot("msp")
    with pytest.raises(InputError, match="no open set"):
        de.evaluate(det.classifier, "mcm", photos, resamples=10).plot()


@pytest.mark.parametrize("thing", [np.eye(3), "clf", None])
def test_a_detector_of_something_else_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match="A detector needs a classifier"):
        de.Detector(thing)
