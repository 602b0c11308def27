"""Detectors whose threshold holds for new images: the default, fitted scores, classes, false discoveries, files."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

import deltaenergy as de
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.calibration import Calibration, rows_next_to, slack_of_changes
from deltaenergy.detector.guarantee import Guarantee, NoGuarantee
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.errors import ArtifactError, InputError, NotFittedError
from deltaenergy.files import read_json, write_json
from deltaenergy.files.artifact import sealed
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.registry import list_scores, make_score
from deltaenergy.scoring import Scored, deal_folds
from tests.sampling import examples

CLASSES = ("dog", "cat", "red car")


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def unit_features(count: int, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, 16)))


@pytest.fixture(scope="module")
def classifier(tiny_clip: de.Model) -> de.Classifier:
    return de.ZeroShotClassifier(tiny_clip, CLASSES)


def near_classes(classifier: de.Classifier, counts: list[int], seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Features near the class texts, and their classes; the tiny model's texts lie close together."""
    rng = np.random.default_rng(seed)
    texts = classifier.model.encode_texts([classifier.templates[0].format(name) for name in CLASSES])
    apart = texts - texts.mean(axis=0)
    truth = np.repeat(np.arange(len(CLASSES)), counts)
    rows = unit(4 * unit(apart)[truth] + rng.normal(size=(len(truth), 16)) / 4)
    return rows, [CLASSES[k] for k in truth]


def scored(values: list[float] | np.ndarray, predicted: list[int] | None = None, spec: str = "energy") -> Scored:
    count = len(values)
    return Scored(
        items=[ImageItem(f"{i}.png", b"") for i in range(count)],
        unreadable=[],
        top=np.array(predicted if predicted is not None else [0] * count, dtype=np.int64)[:, None],
        top_confidence=np.full((count, 1), 0.5, np.float32),
        values={spec: np.array(values, dtype=np.float64)},
    )


def test_a_new_detector_keeps_the_share_on_average(classifier: de.Classifier) -> None:
    """100 images: ⌊0.05 · 101⌋ = 5; strictly, the largest k with P(Bin(100, 0.05) ≥ k) ≥ 0.9 is 2, by scipy."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoGuarantee)
        detector = de.Detector(classifier, "energy").calibrate(unit_features(100))
        strict = de.Detector(classifier, "energy").calibrate(unit_features(100), confidence=0.9)
    assert detector.threshold == detector.calibration_scores[4]
    assert detector.guarantee is not None and detector.guarantee.confidence is None and detector.guarantee.holds
    assert (detector.guarantee.keep, detector.guarantee.images) == (0.95, 100)
    k = max(k for k in range(1, 20) if stats.binom.sf(k - 1, 100, 0.05) >= 0.9)
    assert strict.threshold == strict.calibration_scores[k - 1]
    assert strict.guarantee is not None and strict.guarantee.confidence == 0.9
    surer = de.Detector(classifier, "energy").calibrate(unit_features(100), confidence=0.99)
    assert surer.threshold == surer.calibration_scores[0], "P(Bin(100, 0.05) ≥ 2) = 0.963 is not enough"


def test_too_few_images_are_told_with_the_number_it_takes(classifier: de.Classifier) -> None:
    with pytest.warns(NoGuarantee, match=r"94\.7%.*needs 19 images"):
        detector = de.Detector(classifier, "energy").calibrate(unit_features(18))
    assert detector.threshold == detector.calibration_scores[0]
    with pytest.warns(NoGuarantee, match="needs 45 images"):
        de.Detector(classifier, "energy").calibrate(unit_features(44), confidence=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoGuarantee)
        de.Detector(classifier, "energy").calibrate(unit_features(19))
        de.Detector(classifier, "energy").calibrate(unit_features(20), keep=1.0)


def test_images_that_the_classifier_was_trained_on_guarantee_nothing(classifier: de.Classifier, tmp_path: Path) -> None:
    with pytest.warns(NoGuarantee, match="trained on"):
        detector = de.Detector(classifier, "energy").calibrate(unit_features(100), trained=True)
    detector.save(tmp_path)
    for one in (detector, de.Detector.load(tmp_path, model=classifier.model)):
        assert one.guarantee is not None and not one.guarantee.holds
        assert [verdict.p_value for verdict in one.predict(unit_features(3))] == [None] * 3
        with pytest.raises(InputError, match="fdr"):
            one.predict(unit_features(3), fdr=0.1)


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_fitted_scores_are_judged_by_cross_conformal_p_values(
    classifier: de.Classifier, confidence: float | None
) -> None:
    """Worked out from scorers that are fitted here: each image is compared by the fold that left it out."""
    features, new = unit_features(60), unit_features(40, seed=1)
    detector = de.Detector(classifier, "mahalanobis").calibrate(features, 0.8, confidence)
    known = detector.require_calibration()
    assert detector.threshold is None and known.folds is not None and detector.bounds() is None
    folds = deal_folds([None] * 60)
    assert np.bincount(folds).tolist() == [12] * 5
    scorer = make_score("mahalanobis").bind(classifier)

    def inputs(rows: np.ndarray) -> ScoreInputs:
        return ScoreInputs(torch.from_numpy(classifier.similarities(rows)), torch.from_numpy(rows))

    fitted = [scorer.fit(inputs(features[folds != k])) for k in range(5)]
    own = np.array([float(fitted[k](inputs(features[[i]]))[0]) for i, k in enumerate(folds)])
    np.testing.assert_allclose(np.sort(own), known.scores, rtol=1e-4)
    every = np.stack([one(inputs(new)).double().numpy() for one in fitted], axis=1)
    counts = np.array([sum(own[i] <= row[folds[i]] for i in range(60)) for row in every])
    # ⌊0.2 · 61⌋ = 12; strictly, by scipy.
    rank = 12 if confidence is None else max(k for k in range(1, 30) if stats.binom.sf(k - 1, 60, 0.2) >= 0.9)
    for verdict, count, row in zip(detector.predict(new), counts, every):
        assert verdict.score == pytest.approx(row.mean(), rel=1e-4)
        assert verdict.p_value == pytest.approx((1 + count) / 61)
        assert verdict.is_ood == (count < rank)
    assert 0 < (counts < rank).sum() < 40, "or nothing was tested"
    margins = known.margins(every)
    assert ((margins < 0) == (counts < rank)).all()


def test_a_fitted_score_keeps_what_it_should_of_new_images(classifier: de.Classifier) -> None:
    """100 images in 16 dimensions: a covariance of all of them, judged in-sample, would reject most new images."""
    kept, small = [], []
    for seed in range(10):
        detector = de.Detector(classifier, "mahalanobis").calibrate(unit_features(100, seed=10 + seed))
        verdicts = detector.predict(unit_features(300, seed=100 + seed))
        kept.append(np.mean([not verdict.is_ood for verdict in verdicts]))
        small.append(np.mean([verdict.p_value <= 0.1 for verdict in verdicts]))  # type: ignore[operator]
    assert 0.95 <= np.mean(kept) < 1 and np.mean(small) <= 0.1


def test_a_fitted_score_has_no_exact_p_values(classifier: de.Classifier) -> None:
    detector = de.Detector(classifier, "react").calibrate(unit_features(100))
    assert detector.guarantee is not None and detector.guarantee.folds == 5 and detector.guarantee.at_least is None
    with pytest.raises(InputError, match="fdr"):
        detector.predict(unit_features(9), fdr=0.1)
    with pytest.raises(InputError, match="monitor"):
        de.Monitor(detector)
    single = de.Detector(classifier, "react").calibrate(unit_features(1))
    assert single.guarantee is not None and not single.guarantee.holds
    assert [verdict.p_value for verdict in single.predict(unit_features(3))] == [None] * 3
    with pytest.raises(InputError, match="cross_fit"):
        detector.calibrate_scored(scored(np.arange(50.0), spec="react"))


def test_folds_are_dealt_by_class_and_calibrated_again(classifier: de.Classifier) -> None:
    rows, labels = near_classes(classifier, [60, 25, 15])
    detector = de.Detector(classifier, "knn").calibrate(rows, by_class=True, labels=labels)
    known = detector.require_calibration()
    assert known.folds is not None and known.groups is not None
    folds = deal_folds(labels)
    for name in CLASSES:
        counts = np.bincount(folds[np.array(labels) == name], minlength=5)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(np.bincount(known.folds), np.bincount(folds))
    again = detector.calibrate(unit_features(50)).require_calibration()
    alone = de.Detector(classifier, "knn").calibrate(unit_features(50)).require_calibration()
    np.testing.assert_array_equal(again.scores, alone.scores)


def test_a_fold_that_is_missing_is_refused(classifier: de.Classifier, tmp_path: Path) -> None:
    de.Detector(classifier, "react").calibrate(unit_features(50)).save(tmp_path)
    record = read_json(tmp_path / "detector.json")
    record["calibration"]["folds"] = 6
    write_json(tmp_path / "detector.json", sealed(record))
    with pytest.raises(ArtifactError, match="5 folds"):
        de.Detector.load(tmp_path, model=classifier.model)


def test_an_evaluation_uses_the_verdicts_of_a_fitted_detector(classifier: de.Classifier) -> None:
    detector = de.Detector(classifier, "mahalanobis").calibrate(unit_features(100), 0.8)
    known, test = unit_features(90, seed=3), unit_features(80, seed=9)
    evaluation = de.evaluate(detector, ["mahalanobis"], [("known", known)], open_sets=[("open", test)], resamples=0)
    assert evaluation.thresholds["mahalanobis"] is None
    (opened,) = [row for row in evaluation.kept if row.set == "open"]
    assert opened.kept.value == pytest.approx(np.mean([not verdict.is_ood for verdict in detector.predict(test)]))


def test_each_class_has_its_threshold(classifier: de.Classifier) -> None:
    """Dogs and cats have enough images, red cars do not; each is judged by its own."""
    features, labels = near_classes(classifier, [200, 120, 30])
    detector = de.Detector(classifier, "max-logit").calibrate(features, 0.95, 0.9, by_class=True, labels=labels)
    cosines = classifier.similarities(features).astype(np.float64)
    named, truth = cosines.argmax(axis=1), np.array([CLASSES.index(label) for label in labels])
    assert 0.7 < (named == truth).mean() < 1, "some have a wrong name"
    assert set(detector.class_thresholds) == {"dog", "cat"}
    assert detector.guarantee is not None and detector.guarantee.pooled == ("red car",)
    groups = {}
    for k in (0, 1):
        own = np.sort(cosines.max(axis=1)[(named == k) & (truth == k)])
        rank = max(r for r in range(1, 40) if stats.binom.sf(r - 1, len(own), 0.05) >= 0.9)
        assert detector.class_thresholds[CLASSES[k]] == pytest.approx(own[rank - 1])
        groups[k] = (own, own[rank - 1])
    groups[2] = (np.sort(cosines.max(axis=1)), detector.threshold)
    test = unit_features(60, seed=4)
    verdicts = detector.predict(test)
    assert list(detector.stream(test, batch_size=7)) == list(verdicts)
    assert {verdict.label for verdict in verdicts} == set(CLASSES)
    for row, verdict in zip(classifier.similarities(test).astype(np.float64), verdicts):
        own, bound = groups[int(row.argmax())]
        assert verdict.is_ood == (row.max() < bound)
        if verdict.label == "red car":
            assert verdict.p_value is None, "no p-value is valid against images of other classes"
        else:
            assert verdict.p_value == pytest.approx((1 + (own <= row.max() + 1e-9).sum()) / (len(own) + 1))


def test_folders_are_labels(classifier: de.Classifier, photos: Path) -> None:
    detector = de.Detector(classifier, "delta-energy").calibrate(photos, keep=0.5, by_class=True)
    assert detector.guarantee is not None
    assert {*detector.guarantee.own, *detector.guarantee.pooled} == set(CLASSES)
    with pytest.raises(InputError, match="by_class"):
        de.Detector(classifier, "delta-energy").calibrate(sorted(photos.rglob("*.png")), by_class=True)
    (photos / "horse").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "horse" / "x.png")
    with pytest.raises(InputError, match=r"'horse'.* 3 classes"):
        de.Detector(classifier, "delta-energy").calibrate(photos, by_class=True)


def test_labels_of_features_also_give_the_accuracy(classifier: de.Classifier) -> None:
    detector = de.Detector(classifier, "energy").calibrate(unit_features(50), labels=["dog"] * 50)
    share = np.mean([verdict.label == "dog" for verdict in detector.predict(unit_features(50))])
    assert detector.class_accuracy is not None and detector.class_accuracy.share == pytest.approx(share)


def test_a_class_that_stands_twice_is_one_class(tiny_clip: de.Model) -> None:
    twice = de.ZeroShotClassifier(tiny_clip, ["dog", "cat", "Dog"])
    found = scored(np.arange(100.0), predicted=[0, 2] * 50)
    labelled = [replace(item, label=label) for item, label in zip(found.items, ["Dog", "dog"] * 50)]
    detector = de.Detector(twice, "energy").calibrate_scored(replace(found, items=labelled), by_class=True)
    assert set(detector.class_thresholds) == {"dog"}
    bounds = detector.bounds()
    assert bounds is not None and bounds[0] == bounds[2] == detector.class_thresholds["dog"]
    assert detector.guarantee is not None and detector.guarantee.pooled == ("cat",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 0}, "`confidence` must be"),
        ({"confidence": 1}, "`confidence` must be"),
        ({"confidence": math.nan}, "`confidence` must be"),
        ({"confidence": "0.9"}, "`confidence` must be"),
        ({"keep": "0.9"}, "`keep` must be"),
        ({"by_class": True}, "`by_class` needs the class"),
        ({"by_class": True, "keep": 1.0}, "`by_class` needs `keep`"),
        ({"by_class": True, "labels": ["dog"] * 49}, "labels has 49 entries"),
        ({"by_class": True, "labels": ["dog"] * 49 + ["dgo"]}, r"row 49 .*'dgo'.*'dog'"),
    ],
)
def test_senseless_settings_are_refused(classifier: de.Classifier, arguments: dict[str, object], message: str) -> None:
    detector = de.Detector(classifier, "delta-energy")
    with pytest.raises(InputError, match=message):
        detector.calibrate(unit_features(50), **arguments)  # type: ignore[arg-type]
    assert detector.threshold is None


def test_false_discoveries_over_all_images(classifier: de.Classifier) -> None:
    """99 calibration scores 1 … 99: p = (1 + ⌊s⌋)/100. Of ten images three have p ≤ 0.03 = 0.1·3/10."""
    detector = de.Detector(classifier, "energy").calibrate_scored(scored(np.arange(1.0, 100.0)))
    values = [0.0, 1.5, 2.5, 4.5, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0]
    found = detector.control(detector.judge(scored(values)), 0.1)
    assert [verdict.is_ood for verdict in found] == [True] * 3 + [False] * 7
    assert [verdict.score for verdict in found] == values
    nothing = detector.control(detector.judge(scored([50.0, 60.0, math.nan])), 0.001)
    assert [verdict.is_ood for verdict in nothing] == [False, False, True], "no number is never known"
    batches = [scored(values[:4]), scored([]), scored(values[4:])]
    together = detector.control(Verdicts.concat(detector.judge(batch) for batch in batches), 0.1)
    assert together.is_ood is not None and together.is_ood.tolist() == [True] * 3 + [False] * 7
    assert together.fdr == 0.1 and together.scores.tolist() == values


def test_predict_controls_false_discoveries(classifier: de.Classifier) -> None:
    features = unit_features(60, seed=2)
    detector = de.Detector(classifier, "energy").calibrate(unit_features(100))
    p = np.array([verdict.p_value for verdict in detector.predict(features)])
    expected = stats.false_discovery_control(p, method="bh") <= 0.5
    assert [verdict.is_ood for verdict in detector.predict(features, fdr=0.5)] == expected.tolist()
    for bad in (0, 1, math.nan, "0.1"):
        with pytest.raises(InputError, match="`fdr` must be"):
            detector.predict(features, fdr=bad)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError):
        de.Detector(classifier, "delta-energy").predict(features, fdr=0.1)
    rows, labels = near_classes(classifier, [60, 60, 60])
    with pytest.raises(InputError, match="`by_class`"):
        de.Detector(classifier, "delta-energy").calibrate(rows, by_class=True, labels=labels).predict(features, fdr=0.1)


@pytest.mark.parametrize("spec", ["energy", "react"])
def test_all_of_it_is_saved(classifier: de.Classifier, tmp_path: Path, spec: str) -> None:
    rows, labels = near_classes(classifier, [80, 60, 5])
    detector = de.Detector(classifier, spec).calibrate(rows, 0.8, 0.8, by_class=True, labels=labels)
    assert detector.guarantee is not None and detector.guarantee.own == ("dog", "cat")
    assert set(detector.class_thresholds) == (set() if spec == "react" else {"dog", "cat"})
    detector.calibration = replace(detector.require_calibration(), slack=1e-3)  # more than the scores' range tells
    detector.save(tmp_path)
    loaded = de.Detector.load(tmp_path, model=classifier.model)
    assert loaded.guarantee == detector.guarantee and str(loaded.guarantee) == str(detector.guarantee)
    assert loaded.class_thresholds == detector.class_thresholds
    assert loaded.require_calibration().slack == detector.require_calibration().slack
    test = unit_features(40, seed=6)
    assert list(loaded.predict(test)) == list(detector.predict(test))


def test_detectors_of_an_older_format_are_refused_with_what_to_run(classifier: de.Classifier, tmp_path: Path) -> None:
    de.Detector(classifier, "energy").calibrate(unit_features(30)).save(tmp_path)
    record = read_json(tmp_path / "detector.json")
    write_json(tmp_path / "detector.json", sealed({**record, "format": "deltaenergy detector 2"}))
    with pytest.raises(ArtifactError, match="deltaenergy calibrate"):
        de.Detector.load(tmp_path, model=classifier.model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 2}, r"calibration\.keep is 2"),
        ({"confidence": 1}, r"calibration\.confidence is 1"),
        ({"images": 49}, "calibration_scores"),
        ({"own": ["dog"]}, "calibration_classes"),
        ({"slack": -1}, "slack is -1"),
    ],
)
def test_damaged_guarantees_are_refused(
    classifier: de.Classifier, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    de.Detector(classifier, "energy").calibrate(unit_features(50)).save(tmp_path)
    record = read_json(tmp_path / "detector.json")
    changed = {**record, "calibration": {**record["calibration"], **changes}}
    write_json(tmp_path / "detector.json", sealed(changed))
    with pytest.raises(ArtifactError, match=message):
        de.Detector.load(tmp_path, model=classifier.model)


def test_classes_that_own_no_image_are_refused(classifier: de.Classifier, tmp_path: Path) -> None:
    rows, labels = near_classes(classifier, [60, 60, 5])
    de.Detector(classifier, "energy").calibrate(rows, by_class=True, labels=labels).save(tmp_path)
    record = read_json(tmp_path / "detector.json")
    assert record["calibration"]["own"] == ["dog", "cat"]
    record["calibration"]["own"] = ["dog"]
    write_json(tmp_path / "detector.json", sealed(record))
    with pytest.raises(ArtifactError, match="own"):
        de.Detector.load(tmp_path, model=classifier.model)


def test_an_evaluation_uses_the_thresholds_of_classes(classifier: de.Classifier) -> None:
    rows, labels = near_classes(classifier, [200, 60, 60])
    detector = de.Detector(classifier, "max-logit").calibrate(rows, by_class=True, labels=labels)
    test = unit_features(80, seed=9)
    evaluation = de.evaluate(detector, ["max-logit"], [("known", rows)], open_sets=[("open", test)], resamples=0)
    (opened,) = [row for row in evaluation.kept if row.set == "open"]
    verdicts = detector.predict(test)
    assert opened.kept.value == pytest.approx(np.mean([not verdict.is_ood for verdict in verdicts]))
    assert opened.kept.value != pytest.approx((np.array([v.score for v in verdicts]) >= detector.threshold).mean())
    assert evaluation.provenance["guarantee"] == str(detector.guarantee)


PICTURES = [name for name in list_scores() if make_score(name).missing is None]


def random_pictures(count: int, seed: int) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [
        Image.fromarray(rng.integers(0, 256, size=(int(side), 40, 3), dtype=np.uint8))
        for side in rng.integers(24, 60, size=count)
    ]


@pytest.mark.parametrize("spec", [*PICTURES, "delta-energy:robust", "entropy(temperature=0.001)"])
def test_a_calibration_image_scored_alone_is_never_rejected_when_all_are_kept(
    classifier: de.Classifier, spec: str
) -> None:
    """Calibrated in batches of 32, scored singly: rounding of a batch decides nothing, however few the images.

    Only the images whose scores are lowest could fall below a threshold that keeps all.
    """
    fitted = make_score(spec).needs_fit
    for count, seed in ((40, 0), (2 if fitted else 1, 1), (4, 2)):
        pictures = random_pictures(count, seed)
        known = [ImageItem(str(i), one, classifier.classes[i % 2]) for i, one in enumerate(pictures)]
        detector = de.Detector(classifier, spec).calibrate(known, keep=1.0, batch_size=32)
        together = [verdict.score for verdict in detector.predict(pictures, batch_size=32)]
        alone = [detector.predict([pictures[i]], batch_size=1)[0] for i in np.argsort(together)[:8]]
        assert len(together) == count and alone and not any(verdict.is_ood for verdict in alone)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 12), st.floats(1e-9, 1e-4), st.integers(0, 1000))
def test_slack_covers_what_a_batch_changes_in_saturated_scores(count: int, noise: float, seed: int) -> None:
    """Scores near zero that rounding moves by far more than millionths of their size or range."""
    rng = np.random.default_rng(seed)
    values = 1e-5 * rng.random(count)
    moved = values + noise * rng.choice([-1, 1], size=count)
    assert (moved >= values.min() - widened_slack(values, moved)).all()


def widened_slack(values: np.ndarray, moved: np.ndarray) -> float:
    """The slack of a detector that keeps all images, whose scores are `moved` when they come alone."""
    rows = rows_next_to(values, values.min())
    return slack_of_changes(values[rows], moved[rows])


@pytest.mark.parametrize(("change", "slack"), [(1e-5, 8e-5), (-2e-4, 16e-4), (9e-4, 72e-4), (0.002, 0.0), (-0.5, 0.0)])
def test_slack_is_eight_times_a_change_by_rounding_and_nothing_for_a_larger_one(change: float, slack: float) -> None:
    """What moves by more than a thousandth depends on its batch: no slack may hide that. Only the four next count."""
    values = np.arange(6.0) / 10
    moved = values.copy()
    moved[3] += change
    assert widened_slack(values, moved) == pytest.approx(slack, rel=1e-9, abs=1e-12)
    moved = values.copy()
    moved[4] += change
    assert widened_slack(values, moved) == 0


def test_batches_of_a_store_and_of_features_need_no_slack_of_their_own(classifier: de.Classifier) -> None:
    detector = de.Detector(classifier, "energy").calibrate(unit_features(50))
    low, high = detector.calibration_scores[[0, -1]]
    assert 0 < detector.require_calibration().slack <= 1e-4 * max(abs(low), abs(high)), "nothing else may slip through"


def test_what_rounding_changes_does_not_reject() -> None:
    """A score that is below the threshold by less than the slack is kept."""
    known = Calibration(np.arange(1.0, 41.0), Guarantee(0.95, None, 40), slack=0.25)
    assert known.threshold == 2.0
    assert known.rejects(np.array([1.7, 1.8, 2.0, np.nan])).tolist() == [True, False, False, True]
