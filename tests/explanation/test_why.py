"""Why rejected: nearest classes, p-values, neighbours and words, against NumPy in float64 from features and texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.explanation.page import in_words, why_tables
from deltaenergy.explanation.why import CLASSES, NEIGHBOURS, RejectionReasons, negative_words, why_rejected
from tests.report.checks import Page, check_page

NAMES = ["dog", "cat", "red car", "house"]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def unit(count: int, seed: int, dimension: int = 16) -> np.ndarray:
    features = np.random.default_rng(seed).normal(size=(count, dimension))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def texts() -> np.ndarray:
    return unit(4, 7)


@pytest.fixture(scope="module")
def known(texts: np.ndarray) -> np.ndarray:
    """Forty images near the first three texts, and none near the fourth."""
    rows = texts[np.arange(40) % 3] + 0.4 * unit(40, 8)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def detector(texts: np.ndarray, known: np.ndarray) -> de.Detector:
    classifier = de.PrecomputedClassifier(texts, NAMES)
    return de.Detector(classifier, "max-logit").calibrate(known, 0.9, None, keep_images=True)


def test_everything_by_numpy(detector: de.Detector, texts: np.ndarray, known: np.ndarray) -> None:
    images = unit(6, 9)
    found = why_rejected(detector, images, scores=["mcm", "max-logit", "energy"], rejected_only=False)
    z, t, calibration = images.astype(np.float64), texts.astype(np.float64), known.astype(np.float64)
    cosines, reference = z @ t.T, calibration @ t.T
    named = reference.argmax(axis=1)

    def scores(s: np.ndarray) -> dict[str, np.ndarray]:
        softmax = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        return {
            "max-logit": s.max(axis=1),
            "mcm": softmax.max(axis=1),
            "energy": 0.01 * np.log(np.exp(s / 0.01).sum(axis=1)),
        }

    of_images, of_known = scores(cosines), scores(reference)
    assert [one.id for one in found] == [f"row {i}" for i in range(6)]
    for i, why in enumerate(found):
        order = np.argsort(-cosines[i])[:CLASSES]
        assert [one.name for one in why.classes] == [NAMES[k] for k in order]
        for one, k in zip(why.classes, order):
            usual = reference[named == k, k]
            assert one.similarity == pytest.approx(cosines[i, k], abs=1e-6)
            assert one.images == len(usual)
            if len(usual) < 5:
                assert one.usual is None and one.p_value is None
                continue
            assert one.usual == pytest.approx(np.quantile(usual, [0.05, 0.5, 0.95]), abs=1e-6)
            assert one.p_value == pytest.approx((1 + (usual <= cosines[i, k]).sum()) / (len(usual) + 1))
        assert [one.spec for one in why.scores] == ["max-logit", "mcm", "energy"]
        for one in why.scores:
            below = (of_known[one.spec] <= of_images[one.spec][i]).sum()
            assert one.value == pytest.approx(of_images[one.spec][i], abs=1e-5)
            assert one.p_value == pytest.approx((1 + below) / 41)
            assert (one.as_low, one.images) == (below, 40)
        nearness = calibration @ z[i]
        nearest = np.argsort(-nearness)[:NEIGHBOURS]
        assert [one.name for one in why.images] == [f"row {j}" for j in nearest]
        assert [one.cosine for one in why.images] == pytest.approx(nearness[nearest], abs=1e-6)
        assert [one.named for one in why.images] == [NAMES[named[j]] for j in nearest]
        assert [one.score for one in why.images] == pytest.approx(of_known["max-logit"][nearest], abs=1e-6)
        assert why.words == () and why.notes == ()
    assert NAMES[3] not in {NAMES[k] for k in named}


def test_only_rejected_images_are_asked_about(detector: de.Detector, known: np.ndarray) -> None:
    images = np.concatenate([known[:3], unit(5, 9)])
    rejected = [verdict.path for verdict in detector.predict(images) if verdict.is_ood]
    assert rejected and [one.id for one in why_rejected(detector, images, scores=[])] == rejected


def test_what_was_not_kept_is_said(texts: np.ndarray, known: np.ndarray) -> None:
    bare = de.Detector(de.PrecomputedClassifier(texts, NAMES), "mcm").calibrate(known, 0.9, None)
    (why, *_) = why_rejected(bare, unit(2, 9), rejected_only=False)
    assert why.images == () and [one.spec for one in why.scores] == ["mcm"]
    assert all(one.p_value is None for one in why.classes)
    assert "keep_images" in why.notes[0] and "keep_images" in Page(why_tables(why)).text


def test_words_that_speak_loudest(tiny_clip: de.Model) -> None:
    """Shares by the softmax over classes and words, from texts that are encoded here."""
    classifier = de.ZeroShotClassifier(tiny_clip, NAMES)
    features = unit(30, 3)
    detector = de.Detector(classifier, "neglabel").calibrate(features, 0.9, None)
    words = negative_words(detector.scorer)
    assert words is not None
    (why,) = RejectionReasons(detector).of(
        detector.predict(features[:1]), classifier.similarities(features[:1]), features[:1]
    )
    from deltaenergy.scores.negatives.mining import wordnet_pool

    nouns = set(wordnet_pool(["noun.animal", "noun.food"]).nouns)
    prompts = [f"the nice {word}" if word in nouns else f"This is a {word} photo" for word in words]
    cosines = tiny_clip.encode_texts(prompts).astype(np.float64) @ features[0].astype(np.float64)
    own = classifier.similarities(features[:1])[0].astype(np.float64)
    exps = np.exp(np.concatenate([own, cosines]) / 0.01)
    order = np.argsort(-cosines)[: len(why.words)]
    assert [one.word for one in why.words] == [words[j] for j in order]
    assert [one.similarity for one in why.words] == pytest.approx(cosines[order], abs=1e-4)
    assert [one.share for one in why.words] == pytest.approx((exps[4:] / exps.sum())[order], rel=0.05, abs=1e-4)
    assert f"“{why.words[0].word}”" in in_words(why)
    assert negative_words(de.Detector(classifier, "mcm").scorer) is None


def test_pictures_and_words_of_the_fragment(tiny_clip: de.Model, photos: Path) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["<dog>", "cat"])
    detector = de.Detector(classifier, "mcm").calibrate(photos, 0.9, None, keep_images=True)
    (why, *_) = why_rejected(detector, photos, scores=["energy"], rejected_only=False)
    # The image is a calibration image itself, so that it is its own nearest neighbour.
    assert why.images[0].name == why.id and why.images[0].cosine == pytest.approx(1, abs=1e-4)
    page = Page(why_tables(why))
    assert len(page.all("img")) == len(why.images) and all(image["alt"] for image in page.all("img"))
    assert "energy" in page.text and "<dog>" in page.text


def test_rejected_images_of_a_page_have_their_reasons(tiny_clip: de.Model, photos: Path, tmp_path: Path) -> None:
    from deltaenergy.explanation.page import write_explanations

    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    detector = de.Detector(classifier, "mcm").calibrate(photos, 0.5, None, keep_images=True)
    rejected = sum(verdict.is_ood for verdict in detector.predict(photos))
    assert 0 < rejected < 8
    write_explanations(detector, photos, tmp_path / "page.html", method="value-path")
    page = check_page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.text.count("It was rejected") == rejected
    assert page.text.count("The closest calibration images") == rejected
    assert page.text.count("Closest classes") == 8 - rejected


def test_the_number_of_known_images_that_score_as_low_is_said(detector: de.Detector, texts: np.ndarray) -> None:
    """Of 40 known images none scores as low as this one: 1/41 is its p-value, and not a share of images."""
    far = -texts.sum(axis=0, keepdims=True)
    (why,) = why_rejected(detector, (far / np.linalg.norm(far)).astype(np.float32))
    assert why.verdict.p_value == pytest.approx(1 / 41)
    assert (why.scores[0].as_low, why.scores[0].images) == (0, 40)
    assert "0 of 40 known images" in in_words(why) and "2.4" not in in_words(why)
    assert "0 of 40" in Page(why_tables(why)).text


def test_a_detector_with_thresholds_by_class_counts_the_images_of_that_class(tiny_clip: de.Model) -> None:
    classifier, rows = de.ZeroShotClassifier(tiny_clip, ["dog", "cat"]), unit(60, 4)
    similarities = classifier.similarities(rows)
    labels = [classifier.classes[k] for k in similarities.argmax(axis=1)]
    detector = de.Detector(classifier, "max-logit").calibrate(rows, 0.8, by_class=True, labels=labels)
    for why in why_rejected(detector, unit(20, 5), rejected_only=False):
        own = [row.max() for row, label in zip(similarities, labels) if label == why.verdict.label]
        assert why.scores[0].images == len(own) < 60
        assert why.scores[0].as_low == sum(s <= why.scores[0].value for s in own)


def test_a_cross_fitted_score_counts_by_fold(tiny_clip: de.Model) -> None:
    detector = de.Detector(de.ZeroShotClassifier(tiny_clip, NAMES), "mahalanobis").calibrate(unit(60, 4), 0.8)
    for why in why_rejected(detector, unit(5, 5), rejected_only=False):
        assert why.scores[0].images == 60 and why.scores[0].as_low in range(61)
        assert why.scores[0].p_value == pytest.approx((1 + why.scores[0].as_low) / 61)
