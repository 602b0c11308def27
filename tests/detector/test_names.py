"""Thresholds from class names alone: the rule, verdicts, what they are more like, and files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.classifiers.methods import make_method
from deltaenergy.detector.names import MEASURED, NamesRule, measured_name
from deltaenergy.errors import ArtifactError, InputError, NotFittedError
from deltaenergy.files import read_json, write_json
from deltaenergy.files.artifact import sealed
from deltaenergy.scores.negatives.competing import default_pool, remove_own

CLASSES = ["dog", "guitar", "house"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, cache_of_module: Path) -> None:
    """One for all of these tests: the words are encoded once."""
    monkeypatch.setenv("DELTAENERGY_CACHE", str(cache_of_module))


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def lite() -> de.Model:
    return de.load_model("lite")


def renamed(lite: de.Model, name: str) -> de.Model:
    return lite if name == lite.name else lite.derived("another", name=name)


@pytest.fixture(scope="module")
def detector(lite: de.Model) -> de.Detector:
    return de.Detector.from_names(de.ZeroShotClassifier(lite, CLASSES))


def features_of(lite: de.Model, *texts: str) -> np.ndarray:
    """Texts in the place of images: the nearest name is the text itself."""
    return de.ZeroShotClassifier(lite, list(texts)).text_features.float().numpy()


def score_by_hand(similarities: np.ndarray, words: np.ndarray, scale: float, weight: float) -> np.ndarray:
    """odds + weight · C in float64."""
    odds = np.log(np.exp(scale * similarities).sum(axis=1)) - np.log(np.exp(scale * words).sum(axis=1))
    contrast = []
    for s, w in zip(similarities, words):
        others = np.concatenate([np.delete(s, s.argmax()), w])
        contrast.append(10 * s.max() - np.log(np.exp(10 * others).mean()))
    return odds + weight * np.array(contrast)


@pytest.mark.parametrize(("name", "weight"), [("lite", 8.0), ("another-model", 0.0)])
def test_the_rule_by_hand(lite: de.Model, name: str, weight: float) -> None:
    classifier = de.ZeroShotClassifier(renamed(lite, name), CLASSES)
    found = de.Detector.from_names(classifier)
    words = found.words.kept
    texts = features_of(lite, *words).astype(np.float64)
    count = math.log(len(words))
    measured = {"lite": 4 + math.log(3) - count, "another-model": 0.5 * (math.log(3) - count)}
    assert found.threshold == pytest.approx(measured[name])
    images = features_of(lite, "dog", "pizza", "zebra", "house", "banana", "electric guitar").astype(np.float64)
    cosines = images @ features_of(lite, *CLASSES).astype(np.float64).T
    scores = score_by_hand(cosines, images @ texts.T, float(lite.logit_scale), weight)
    verdicts = found.predict(images.astype(np.float32))
    assert [one.score for one in verdicts] == pytest.approx(scores.tolist(), abs=2e-3)
    assert [one.is_ood for one in verdicts] == (scores < measured[name]).tolist()
    assert [one.is_ood for one in verdicts] == [False, True, True, False, True, False]
    assert all(one.p_value is None for one in verdicts)
    for one, row in zip(verdicts, images):
        assert one.more_like == (words[int((texts @ row).argmax())] if one.is_ood else None)


def test_one_class_and_a_thousand(lite: de.Model) -> None:
    one = de.Detector.from_names(de.ZeroShotClassifier(lite, ["dog"]))
    verdicts = one.predict(features_of(lite, "dog", "pizza"))
    assert [verdict.answer for verdict in verdicts] == ["dog", "none of these"]
    many = [f"{word} {number}" for number in range(2) for word in default_pool()[:500]]
    rule = de.Detector.from_names(de.ZeroShotClassifier(lite, many)).guarantee
    assert isinstance(rule, NamesRule) and rule.classes == 1000


def test_classes_that_stand_twice_count_once(lite: de.Model, detector: de.Detector) -> None:
    twice = de.Detector.from_names(de.ZeroShotClassifier(lite, [*CLASSES, "dog"]))
    assert twice.threshold == detector.threshold


def test_it_guarantees_nothing(detector: de.Detector, lite: de.Model) -> None:
    rule = detector.guarantee
    assert isinstance(rule, NamesRule) and not rule.holds and rule.keep is None
    assert "nothing is guaranteed" in str(rule).lower() and rule.to_dict()["text"] == str(rule)
    images = features_of(lite, "dog", "pizza")
    with pytest.raises(NotFittedError, match="calibrate"):
        detector.predict(images, fdr=0.1)
    calibrated = de.Detector(detector.classifier).calibrate(np.repeat(images[:1], 20, axis=0))
    assert not isinstance(calibrated.guarantee, NamesRule)


def test_files(detector: de.Detector, lite: de.Model, tmp_path: Path) -> None:
    detector.save(tmp_path / "made")
    loaded = de.Detector.load(tmp_path / "made", lite)
    images = features_of(lite, "dog", "pizza", "castle")
    assert loaded.guarantee == detector.guarantee
    assert loaded.predict(images).rows() == detector.predict(images).rows()


def test_a_rule_without_constants_needs_words(lite: de.Model) -> None:
    classifier = de.ZeroShotClassifier(renamed(lite, "another-model"), CLASSES)
    with pytest.warns(UserWarning, match="words"), pytest.raises(InputError, match="300"):
        de.Detector.from_names(classifier, "delta-energy+words(weight=0,words='pizza,beach')")


@pytest.mark.parametrize("score", ["mcm", "delta-energy+words(weight=3)", "delta-energy+words(tau=1)"])
def test_other_scores_are_refused(lite: de.Model, score: str) -> None:
    with pytest.raises(InputError, match="calibrate"):
        de.Detector.from_names(de.ZeroShotClassifier(lite, CLASSES), score)


def test_a_model_without_texts_is_refused() -> None:
    classifier = de.PrecomputedClassifier(np.eye(2, 8, dtype=np.float32), ["a", "b"])
    with pytest.raises(InputError, match="text"):
        de.Detector.from_names(classifier)


def test_with_people_no_clothes_compete() -> None:
    pool = default_pool()
    assert {"suit", "jeans", "hat"} <= remove_own(pool, ["dog", "Person"]).keys()
    assert not {"suit", "jeans", "hat"} & remove_own(pool, ["dog", "horse"]).keys()


def test_more_like_of_a_false_discovery_rate(lite: de.Model) -> None:
    """What the rate rejects has its word, whether the threshold rejects it or not."""
    known = np.random.default_rng(0).normal(size=(60, lite.feature_dim)) * 0.02 + features_of(lite, "dog")
    known = (known / np.linalg.norm(known, axis=1, keepdims=True)).astype(np.float32)
    found = de.Detector(de.ZeroShotClassifier(lite, CLASSES)).calibrate(known, keep=0.99)
    verdicts = found.predict(np.concatenate([known[:5], features_of(lite, "pizza", "banana", "zebra")]), fdr=0.3)
    assert [one.is_ood for one in verdicts[-3:]] == [True] * 3
    assert all((one.more_like is not None) == bool(one.is_ood) for one in verdicts)


def test_constants_are_of_the_models_that_were_measured() -> None:
    clip = MEASURED["openai/clip-vit-base-patch16"]
    assert len(MEASURED) == 2 and (clip.offset, clip.slope) == (9.8, 0.5)


def test_constants_are_for_zero_shot_classifiers_of_these_very_models(lite: de.Model) -> None:
    assert measured_name(de.ZeroShotClassifier(lite, CLASSES)) == "lite"
    assert measured_name(de.ZeroShotClassifier(renamed(lite, "models/lite"), CLASSES)) is None, "a folder of any model"
    assert measured_name(make_method("coop(context_length=1)").build_empty(lite, CLASSES)) is None


def test_a_file_with_two_thresholds_is_refused(detector: de.Detector, lite: de.Model, tmp_path: Path) -> None:
    images = np.repeat(features_of(lite, "dog"), 20, axis=0)
    de.Detector(detector.classifier).calibrate(images).save(tmp_path / "made")
    assert isinstance(detector.guarantee, NamesRule)
    record = read_json(tmp_path / "made" / "detector.json")
    write_json(tmp_path / "made" / "detector.json", sealed({**record, "names": detector.guarantee.to_dict()}))
    with pytest.raises(ArtifactError, match="names"):
        de.Detector.load(tmp_path / "made", lite)


def test_a_monitor_counts_and_raises_no_alarm(detector: de.Detector, lite: de.Model, tmp_path: Path) -> None:
    monitor = de.Monitor(detector)
    known, unknown = features_of(lite, "dog"), features_of(lite, "pizza")
    monitor.add(detector.predict(known))
    monitor.add(detector.predict(np.repeat(unknown, 400, axis=0)))
    status = monitor.status
    assert (status.images, status.flagged, status.changed, status.bound) == (401, 400, False, 1.0)
    assert "calibrate" in str(status)
    monitor.save(tmp_path / "state.json")
    assert de.Monitor.load(tmp_path / "state.json", detector).status == status
    de.write_report(monitor, tmp_path / "page.html")
    detector.predict(unknown).to_pandas().to_csv(tmp_path / "table.csv")
    assert de.Monitor(detector).read(tmp_path / "table.csv").flagged == 1


def test_pages_and_public_calls(lite: de.Model, photos: Path, tmp_path: Path) -> None:
    verdicts = de.score(photos, de.ClassNames(CLASSES, lite)).collect()
    detector = de.Detector.from_names(de.ZeroShotClassifier(lite, CLASSES))
    assert verdicts.rows() == detector.predict(photos).rows()
    de.write_report(verdicts, tmp_path / "page.html", detector=detector)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert str(detector.guarantee) in page and (not any(verdicts.is_ood) or "more like" in page)
    with pytest.warns(UserWarning, match="mcm"):
        assert de.score(photos, de.ClassNames(CLASSES, lite), score="mcm").collect().is_ood is None
