"""Scores that learn from known images are measured on images they have not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from deltaenergy import Detector, PrecomputedClassifier, ZeroShotClassifier, evaluate, make_score
from deltaenergy.errors import InputError
from deltaenergy.evaluation import ImageSet, compare
from deltaenergy.evaluation.summary import best_score, ranked_scores
from deltaenergy.scoring import CrossFitted, deal_folds
from tests.colours import ColourModel, paint_sets

CLASSES = [f"class {k}" for k in range(8)]


def drawn(seed: int, count: int = 240, dim: int = 128) -> np.ndarray:
    """Images of the classes, all of one distribution, sorted by class."""
    rng = np.random.default_rng(seed)
    texts = np.random.default_rng(0).normal(size=(8, dim))
    rows = texts[np.sort(np.arange(count) % 8)] + rng.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def classifier() -> PrecomputedClassifier:
    texts = np.random.default_rng(0).normal(size=(8, 128))
    return PrecomputedClassifier((texts / np.linalg.norm(texts, axis=1, keepdims=True)).astype(np.float32), CLASSES)


def test_sets_of_the_same_classes_cannot_be_told_apart(classifier: PrecomputedClassifier) -> None:
    """By no score: neither in the table, nor in the sentence on the best. In-sample, mahalanobis has an AUROC of 69."""
    labels = np.sort(np.arange(240) % 8)
    known = ImageSet("known", drawn(1), [CLASSES[k] for k in labels])
    scores = ["mahalanobis", "knn", "react", "multi-delta-energy", "max-logit"]
    found = evaluate(classifier, scores, [known], [("shifted", drawn(2))], [("open", drawn(3))], resamples=200)
    for row in found.detection:
        area = row.metrics["auroc"]
        assert area.low < 0.5 < area.high, (row.score, row.closed, area)
    assert 0.45 < ranked_scores(found)[0].metrics["auroc"].value < 0.55
    best = best_score(found)
    assert best is not None and best.lead.low <= 0, "no score leads by more than chance"


def test_folds_are_dealt_by_class_for_features_and_class_folders(
    classifier: PrecomputedClassifier, tmp_path: Path
) -> None:
    """Folders are sorted by class: a fold in order of the files would hold whole classes."""
    labels = [CLASSES[k] for k in np.sort(np.arange(240) % 8)]
    found = evaluate(classifier, "knn", [ImageSet("known", drawn(1), labels)], open_sets=[("open", drawn(3))])
    fitted = found.sets[0].scorers["knn"]
    assert isinstance(fitted, CrossFitted)
    assert (np.bincount(fitted.folds * 8 + np.sort(np.arange(240) % 8)) == 6).all()
    sets = paint_sets(tmp_path)
    colours = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    painted = evaluate(colours, "knn", sets / "known", open_sets=sets / "grey").sets[0]
    fitted = painted.scorers["knn"]
    assert isinstance(fitted, CrossFitted)
    np.testing.assert_array_equal(fitted.folds, deal_folds([item.label for item in painted.scored.items]))


def test_several_known_sets_are_dealt_as_one(classifier: PrecomputedClassifier) -> None:
    """Two halves of the images, given as two sets, have the scores of the whole."""
    rows, names = drawn(1), [CLASSES[k] for k in np.sort(np.arange(240) % 8)]
    whole = evaluate(classifier, "mahalanobis", [ImageSet("all", rows, names)], (), [("open", drawn(3))])
    parts = [ImageSet("first", rows[:100], names[:100]), ImageSet("second", rows[100:], names[100:])]
    halves = evaluate(classifier, "mahalanobis", parts, (), [("open", drawn(3))])
    joined = np.concatenate([one.scored.values["mahalanobis"] for one in halves.sets[:2]])
    np.testing.assert_allclose(joined, whole.sets[0].scored.values["mahalanobis"], rtol=1e-5)
    first, second = (one.scorers["mahalanobis"] for one in halves.sets[:2])
    assert isinstance(first, CrossFitted) and isinstance(second, CrossFitted)
    np.testing.assert_array_equal(first.folds, deal_folds(names))
    np.testing.assert_array_equal(second.folds, deal_folds(names)[100:])


def test_thresholds_are_set_on_the_scores_of_known_images_alone(classifier: PrecomputedClassifier) -> None:
    """By scorers that have not seen them; shifted images, whose scores are lower, count for nothing."""
    shifted = drawn(2) * np.linspace(1, -1, 128, dtype=np.float32)
    shifted /= np.linalg.norm(shifted, axis=1, keepdims=True)
    found = evaluate(classifier, ["mahalanobis", "mcm"], [("known", drawn(1))], [("shifted", shifted)], keep=0.9)
    for spec, threshold in found.thresholds.items():
        known, other = (one.scored.values[spec] for one in found.sets)
        assert threshold == np.sort(known)[24] and (known >= threshold).sum() == 216
        assert (other >= threshold).mean() < 0.8


def test_detectors_that_are_compared_learn_as_those_that_are_evaluated(classifier: PrecomputedClassifier) -> None:
    names = [CLASSES[k] for k in np.sort(np.arange(240) % 8)]
    known, others = [ImageSet("known", drawn(1), names)], [("open", drawn(3))]
    detectors = {spec: Detector(classifier, spec) for spec in ("mahalanobis", "mcm")}
    both = compare(detectors, known, (), others, resamples=20)
    alone = evaluate(classifier, "mahalanobis", known, (), others, resamples=20)
    assert both.evaluations["mahalanobis"].detection == alone.detection
    assert alone.detection[0].metrics["auroc"].value == pytest.approx(
        roc_auc_score(np.repeat([1, 0], 240), np.concatenate([one.scored.values["mahalanobis"] for one in alone.sets]))
    )


def test_a_single_known_image_teaches_nothing(classifier: PrecomputedClassifier) -> None:
    with pytest.raises(InputError, match="at least 2"):
        evaluate(classifier, make_score("knn"), [("known", drawn(1)[:1])], (), [("open", drawn(3))])
    found = evaluate(classifier, "mcm", [("known", drawn(1)[:1])], (), [("open", drawn(3))])
    assert len(found.detection) == 1


def test_the_seed_draws_the_intervals(classifier: PrecomputedClassifier) -> None:
    """The same for the same seed, and others for another."""

    def area(seed: int) -> tuple[float, float, float]:
        found = evaluate(classifier, "mcm", [("known", drawn(1))], (), [("open", drawn(3))], resamples=50, seed=seed)
        return tuple(found.detection[0].metrics["auroc"])

    assert area(1) == area(1)
    assert area(1)[0] == area(2)[0] and area(1)[1:] != area(2)[1:]
