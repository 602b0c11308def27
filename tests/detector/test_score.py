"""`de.score`, `de.calibrate`, `de.adapt` and `de.sort` from strings: what is wrong is told before a model is loaded."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.errors import InputError

CLASSES = ["dog", "cat", "red car"]


@pytest.fixture
def names(tiny_clip_folder: Path) -> de.ClassNames:
    return de.ClassNames(CLASSES, tiny_clip_folder)


@pytest.fixture
def saved(tiny_clip: de.Model, photos: Path, tmp_path: Path) -> Path:
    de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES), "mcm").calibrate(photos, 0.5).save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model or a detector fails the test."""
    monkeypatch.setattr("deltaenergy.models.on.On.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(de.Detector, "load", lambda *_, **__: pytest.fail("a detector was loaded"))


def test_a_folder_and_an_object_give_the_verdicts_of_predict(saved: Path, photos: Path) -> None:
    detector = de.Detector.load(saved)
    expected = detector.predict(photos, top_k=2)
    for by in (saved, str(saved), detector):
        found = de.score(photos, by, top_k=2).collect()
        assert found.rows() == expected.rows()
        assert [item.id for item in found.items] == list(expected.paths)
    assert [verdict.to_dict() for verdict in de.score(str(photos), saved, top_k=2)] == expected.rows()


def test_class_names_with_known_images_are_a_calibrated_detector(
    names: de.ClassNames, tiny_clip: de.Model, photos: Path
) -> None:
    detector = de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES), "mcm").calibrate(photos, 0.5)
    found = de.score(photos, names, score="mcm", known=photos, keep=0.5)
    # Two loads of one model need not have its weights aligned alike in memory, which can decide the last bit.
    for ours, other in zip(found.collect(), detector.predict(photos), strict=True):
        assert (ours.path, ours.label, ours.verdict, ours.p_value) == (
            other.path,
            other.label,
            other.verdict,
            other.p_value,
        )
        assert ours.score == pytest.approx(other.score, rel=1e-5)
    assert isinstance(found.detector, de.Detector)
    assert found.detector.threshold == pytest.approx(detector.threshold, rel=1e-5)
    # Without known images there are scores and no verdicts; a list of names is names on the bundled model.
    (plain, *_) = de.score(photos, names, score="mcm")
    assert plain.is_ood is None and plain.score == pytest.approx(detector.predict(photos)[0].score, rel=1e-5)
    (lite, *_) = de.score(photos / "cat", CLASSES, score="max-logit")
    assert lite.label in CLASSES


def test_the_caller_s_own_detector_is_left_as_it_is(tiny_clip: de.Model, photos: Path) -> None:
    own = de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES), "mcm")
    found = de.score(photos, own, known=photos)
    assert found.collect().is_ood is not None and own.calibration is None


def test_false_discoveries_are_those_of_predict(saved: Path, photos: Path) -> None:
    found = de.score(photos, saved, fdr=0.4, on="batch=3").collect()
    assert found.rows() == de.Detector.load(saved).predict(photos, fdr=0.4, batch_size=3).rows() and found.fdr == 0.4


@pytest.mark.parametrize("fdr", [None, 0.1])
def test_no_images_give_an_empty_table(saved: Path, names: de.ClassNames, fdr: float | None) -> None:
    found = de.score([], saved, fdr=fdr).collect()
    assert (len(found), found.is_ood is not None, found.fdr, found.rows()) == (0, True, fdr, [])
    assert len(de.adapt([], names).collect()) == 0


def test_unreadable_images_are_listed_those_of_the_known_first(names: de.ClassNames, photos: Path) -> None:
    (photos / "cat" / "broken.png").write_text("x")
    scoring = de.score(photos / "cat", names, score="mcm", known=photos)
    with pytest.raises(InputError, match="ended"):
        _ = scoring.unreadable
    found = scoring.collect()
    assert [Path(one.id).name for one in found.unreadable] == ["broken.png"] * 2
    assert scoring.counts.unreadable == 1 and scoring.counts.images == 4


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "xlsx"])
def test_a_table_is_written_as_it_comes(saved: Path, photos: Path, tmp_path: Path, ending: str) -> None:
    assert de.score(photos, saved).write(tmp_path / f"t.{ending}") == 8
    if ending == "csv":
        with (tmp_path / "t.csv").open(encoding="utf-8") as file:
            paths = [row["path"] for row in csv.DictReader(file)]
        assert paths == list(de.Detector.load(saved).predict(photos).paths)
    assert de.score(photos, saved).write(tmp_path / "fiftyone") == 8
    assert (tmp_path / "fiftyone" / "labels.json").is_file()


WRONG: dict[str, tuple[Callable[[Path, Any], Any], str]] = {
    "no such image": (lambda p, n: de.score(p / "nope", n), "does not exist"),
    "a list in a table": (lambda p, n: de.score([p, 7], n), r"images\[1\]"),
    "no such detector": (lambda p, n: de.score(p, p / "nope"), "`by`"),
    "misspelt score": (lambda p, n: de.score(p, n, score="mcn"), "Did you mean 'mcm'"),
    "two scores": (lambda p, n: de.score(p, n, score="mcm,msp"), "`score`"),
    "a score that must be fitted": (lambda p, n: de.score(p, n, score="react"), "`known`"),
    "a score that takes gradients": (lambda p, n: de.score(p, n, score="odin", on="onnx"), "`backend='torch'`"),
    "labels for a score": (lambda p, n: de.score(p, n, score="interneg", known=p / "cat"), "needs labels"),
    "keep without known": (lambda p, n: de.score(p, n, keep=0.9), "`keep`.*`known`"),
    "fdr without known": (lambda p, n: de.score(p, n, fdr=0.1), "`fdr`.*`known`"),
    "keep": (lambda p, n: de.score(p, n, keep=2, known=p), "`keep` must"),
    "fdr": (lambda p, n: de.score(p, n, fdr=2, known=p), "`fdr` must"),
    "top_k": (lambda p, n: de.score(p, n, top_k=0), "`top_k`"),
    "on": (lambda p, n: de.score(p, n, on="cdua"), "`on`.*'cuda'"),
    "on and a model": (lambda p, n: de.score(p, n, on=7), "`on`"),
    "no class names": (lambda p, n: de.score(p, de.ClassNames(model="lite")).collect(), "`classes`"),
    "an empty list": (lambda p, n: de.score(p, []), "classes is empty"),
    "template": (lambda p, n: de.ClassNames("dog,cat", template="a photo"), "template"),
    "a file of names": (lambda p, n: de.ClassNames("names.txt"), "names.txt"),
    "another kind": (lambda p, n: de.score(p, 7), "not 7"),
    "calibrate: no such image": (lambda p, n: de.calibrate(p / "nope", n), "does not exist"),
    "calibrate: keep": (lambda p, n: de.calibrate(p, n, keep=0), "`keep`"),
    "calibrate: confidence": (lambda p, n: de.calibrate(p, n, confidence=1), "`confidence`"),
    "calibrate: by class": (lambda p, n: de.calibrate(p / "cat", n, by_class=True), "`by_class`"),
    "calibrate: out": (lambda p, n: de.calibrate(p, n, p / "cat" / "0.png"), "`out`"),
    "calibrate: a score": (lambda p, n: de.calibrate(p / "cat", n, score="interneg"), "needs labels"),
    "adapt: method": (lambda p, n: de.adapt(p, n, "adanag"), "Did you mean 'adaneg'"),
    "adapt: keep": (lambda p, n: de.adapt(p, n, keep=0), "`keep`"),
    "sort: no threshold": (lambda p, n: de.sort(de.score(p, n, score="mcm"), p.parent / "s"), "`known`"),
    "sort: how": (lambda p, n: de.sort(de.score(p, n, known=p), p.parent / "s", "mvoe"), "Did you mean 'move'"),
    "sort: into": (lambda p, n: de.sort(de.score(p, n, known=p), p / "s"), "`into`"),
    "evaluate: no such set": (lambda p, n: de.evaluate(n, None, p, open_sets=p / "nope"), "does not exist"),
    "evaluate: no known images": (lambda p, n: de.evaluate(n), "ID set"),
    "evaluate: a score": (lambda p, n: de.evaluate(n, "mcm,mcn", p), "Did you mean 'mcm'"),
    "evaluate: keep": (lambda p, n: de.evaluate(n, None, p, keep=0), "`keep`"),
    "compare: one": (lambda p, n: de.compare([str(p)], p), "two detectors"),
    "compare: no such detector": (lambda p, n: de.compare(["a", "b"], p), "`by` a "),
    "choose: a score": (lambda p, n: de.choose(n, p, "mcn"), "Did you mean 'mcm'"),
    "choose: no such image": (lambda p, n: de.choose(n, p / "nope"), "does not exist"),
    "explain: method": (lambda p, n: de.explain(n, p, "grad-cm"), "Did you mean 'grad-cam'"),
    "explain: no such image": (lambda p, n: de.explain(n, p / "nope"), "does not exist"),
    "tune: out": (lambda p, n: de.tune_detector("lite", p, p / "cat" / "0.png"), "`out`"),
    "tune: search": (lambda p, n: de.tune_detector("lite", p, p / "new", search=True), "`search`.*`val`"),
}


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_before_a_model_is_loaded(case: str, names: de.ClassNames, photos: Path) -> None:
    call, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        call(photos, names)


@pytest.mark.usefixtures("no_model")
def test_a_detector_brings_its_own_score_and_threshold(photos: Path, tmp_path: Path) -> None:
    for name, value in (("score", "mcm"), ("known", photos), ("keep", 0.9)):
        with pytest.raises(InputError, match=f"`{name}` is part of the detector"):
            de.score(photos, tmp_path, **{name: value})
    with pytest.raises(InputError, match="`by`"):
        de.adapt(photos, tmp_path)


def test_what_is_loaded_stays_where_it_is(tiny_clip: de.Model, photos: Path) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, CLASSES)
    for by in (classifier, de.Detector(classifier), de.ClassNames(CLASSES, tiny_clip)):
        with pytest.raises(InputError, match="`on`"):
            de.score(photos, by, on="cuda")
        assert len(de.score(photos, by, score=None, on="batch=2").collect()) == 8


def test_calibrate_saves_what_it_made(names: de.ClassNames, photos: Path, tmp_path: Path) -> None:
    made = de.calibrate(photos, names, tmp_path / "d", score="mcm", keep=0.5)
    assert de.Detector.load(tmp_path / "d").threshold == made.threshold
    with pytest.raises(InputError, match="`overwrite=True`"):
        de.calibrate(photos, names, tmp_path / "d")
    again = de.calibrate(photos / "cat", tmp_path / "d", tmp_path / "d", score="energy", overwrite=True)
    assert again.score.spec == "energy" and len(again.calibration_scores) == 4
    other = de.calibrate(photos, tmp_path / "d")
    assert other.score.spec == "energy" and len(other.calibration_scores) == 8
    features = other.classifier.model.encode_images(photos)
    assert de.calibrate(features, other.classifier, score="energy").threshold == pytest.approx(
        other.threshold, rel=1e-5
    )


def test_a_detector_of_another_backend_is_refused(saved: Path, photos: Path) -> None:
    with pytest.raises(InputError, match=r"`on`"):
        de.score(photos, saved, on="int8").collect()
    assert len(de.score(photos, saved, on="torch,fp32").collect()) == 8


def test_sort_from_verdicts_and_back(saved: Path, photos: Path, tmp_path: Path) -> None:
    before = {path.relative_to(photos): path.read_bytes() for path in photos.rglob("*.png")}
    planned = de.sort(de.score(photos, saved), tmp_path / "s", "move", dry_run=True)
    assert planned.done == 0 and len(planned.moves) == 8 and not (tmp_path / "s").exists()
    done = de.sort(de.score(photos, saved), tmp_path / "s", "move")
    assert done.done == 8 and done.verdicts is not None and done.undo is not None
    for verdict, item in zip(done.verdicts, done.verdicts.items):
        assert item.path is not None and item.path.is_file()
        assert item.path.parent.name == verdict.answer
    assert de.undo(done.undo).done == 8
    assert {path.relative_to(photos): path.read_bytes() for path in photos.rglob("*.png")} == before
    copied = de.sort(de.Detector.load(saved).predict(photos), tmp_path / "copies")
    assert copied.done == 8 and len(list((tmp_path / "copies").rglob("*.png"))) == 8


def test_rows_of_features_are_scored_as_they_are(saved: Path, photos: Path) -> None:
    detector = de.Detector.load(saved)
    features = detector.classifier.model.encode_images(photos)
    found = de.score(features, detector).collect()
    np.testing.assert_allclose(found.scores, detector.predict(photos).scores, rtol=1e-5)
