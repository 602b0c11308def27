"""Whether tuning helped: honest measures, paired intervals, the rule of choice."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

import deltaenergy as de
from deltaenergy.classifiers.methods import make_method
from deltaenergy.evaluation.tuning_gain import GainRow, TestImages, TunedCandidate, TuningGain, best, measure_gain
from deltaenergy.scores.registry import make_score
from deltaenergy.scoring import deal_folds
from deltaenergy.stats.metrics import Estimate
from deltaenergy.tuning.prepare import TrainSet, prepare_training

NAMES = ["a", "b", "c", "d", "e", "f"]
MCM = make_score("mcm")


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def world(seed: int, per_class: int, noise: float = 0.4, classes: int = 6, dim: int = 16) -> tuple[Any, Any, Any]:
    """Centres, unit features around them class by class, and labels."""
    rng = np.random.default_rng(seed)
    centres = unit(np.random.default_rng(99).normal(size=(classes, dim)))
    labels = np.repeat(np.arange(classes), per_class)
    features = unit(centres[labels] + noise * rng.normal(size=(len(labels), dim)))
    return centres, features.astype(np.float32), labels


def tried(model: de.Model, method: str, train: TrainSet) -> TunedCandidate:
    chosen = make_method(method)
    return TunedCandidate(chosen, de.tune(model, train.sample.classes, train, chosen), train)


def prepared(model: de.Model, features: Any, labels: Any, shots: int) -> TrainSet:
    return prepare_training(model, NAMES, de.LabelledFeatures(features, labels), shots)


def drawn_test(train: TrainSet) -> TestImages:
    features = train.images.mean_features()
    return TestImages(train.sample.items, np.array(train.sample.labels), features, "drawn", drawn=True)


def test_a_gain_is_shown_and_nothing_is_warned_of() -> None:
    """Class vectors that say nothing, and images that are easy to tell apart."""
    _, features, labels = world(1, 8)
    _, others, truth = world(2, 20)
    vectors = unit(np.random.default_rng(5).normal(size=(6, 16)))
    model = de.PrecomputedModel(16, class_vectors=(NAMES, vectors))
    train = prepared(model, features, labels, 8)
    test = TestImages([], truth, torch.from_numpy(others), "others")
    both = [tried(model, "zero-shot", train), tried(model, "linear-probe", train)]
    found = measure_gain(model, both, test, MCM)
    zero_shot, probe = found.rows
    assert found.kept == "linear-probe" and found.warnings() == [] and found.images == 120
    assert zero_shot.accuracy_gain is None and probe.accuracy_gain is not None and probe.auroc is not None
    # The same numbers, counted anew.
    predicted = [one.classifier.similarities(others).argmax(axis=1) == truth for one in both]
    assert zero_shot.accuracy is not None and zero_shot.accuracy.value == pytest.approx(predicted[0].mean())
    lead = predicted[1].astype(float) - predicted[0]
    half = 1.959964 * lead.std() / np.sqrt(120)
    assert probe.accuracy_gain == pytest.approx((lead.mean(), lead.mean() - half, lead.mean() + half), abs=1e-6)
    assert probe.auroc_gain is not None and probe.auroc_gain.low > 0


def test_a_loss_is_warned_of() -> None:
    """Class vectors that are the truth, and training images under the wrong labels."""
    centres, features, labels = world(1, 4)
    _, others, truth = world(2, 20)
    model = de.PrecomputedModel(16, class_vectors=(NAMES, centres))
    train = prepared(model, features, np.roll(labels, 4), 4)
    test = TestImages([], truth, torch.from_numpy(others), "others")
    both = [tried(model, "zero-shot", train), tried(model, "centroids", train)]
    found = measure_gain(model, both, test, MCM, kept="centroids")
    (message,) = [one for one in found.warnings() if "accuracy" in one]
    assert "Tuning made accuracy worse" in message and "chance" not in message and "method='auto'" in message
    # Left to choose, it stays with zero-shot, and has nothing to warn of.
    chosen = measure_gain(model, both, test, MCM)
    assert chosen.kept == "zero-shot" and chosen.warnings() == []


def test_cross_validation_asks_about_images_that_were_not_trained_on() -> None:
    """A nearest neighbour knows its own training images; under random labels nothing can be known of others."""
    rng = np.random.default_rng(0)
    features = unit(rng.normal(size=(60, 16))).astype(np.float32)
    labels = np.repeat(np.arange(6), 10)
    model = de.PrecomputedModel(16, class_vectors=(NAMES, unit(rng.normal(size=(6, 16)))))
    train = prepared(model, features, labels, 10)
    memory = tried(model, "tip-adapter(alpha=10000,beta=100)", train)
    drawn = drawn_test(train)
    assert (memory.classifier.similarities(drawn.features).argmax(axis=1) == drawn.labels).all()
    (row,) = measure_gain(model, [memory], drawn, MCM).rows
    assert row.accuracy is not None and row.accuracy.value < 0.5
    assert row.auroc is not None and 0.2 < row.auroc.value < 0.8


@pytest.mark.parametrize("drawn", [False, True])
def test_left_out_classes_are_not_tuned_on(monkeypatch: pytest.MonkeyPatch, drawn: bool) -> None:
    """Each class is left out once, with all its images; in cross-validation the known images are left out, too."""
    centres, features, labels = world(1, 5)
    model = de.PrecomputedModel(16, class_vectors=(NAMES, centres))
    train = prepared(model, features, labels, 5)
    _, others, truth = world(2, 4)
    test = drawn_test(train) if drawn else TestImages([], truth, torch.from_numpy(others), "others")
    one = tried(model, "centroids", train)
    seen: list[tuple[set[str], set[str]]] = []
    module = importlib.import_module("deltaenergy.evaluation.tuning_gain")
    real = module.tune

    def spy(given: Any, classes: Any, part: TrainSet, *rest: Any, **options: Any) -> Any:
        assert [part.sample.classes[k] for k in part.sample.labels] == [item.label for item in part.sample.items]
        seen.append((set(classes), {item.id for item in part.sample.items}))
        return real(given, classes, part, *rest, **options)

    monkeypatch.setattr(module, "tune", spy)
    measure_gain(model, [one], test, MCM)
    without = [classes for classes, _ in seen if len(classes) < 6]
    assert len(without) == 5
    left_out = [name for classes in without for name in set(NAMES) - classes]
    assert sorted(left_out) == NAMES
    if drawn:
        whole = [ids for classes, ids in seen if len(classes) == 6]
        assert len(whole) == 5 and all(len(ids) == 24 for ids in whole)
        assert set.intersection(*whole) == set()
        for classes, ids in seen:
            assert len(ids) == 4 * len(classes)


def test_auroc_and_its_interval_by_hand() -> None:
    """Three classes in turn left out of zero-shot; AUROC and DeLong's variance in loops over pairs."""
    rng = np.random.default_rng(3)
    vectors = unit(rng.normal(size=(3, 8)))
    labels = np.repeat([0, 1, 2], [3, 4, 5])
    features = unit(vectors[labels] + 0.8 * rng.normal(size=(12, 8))).astype(np.float32)
    names = NAMES[:3]
    model = de.PrecomputedModel(8, class_vectors=(names, vectors))
    train = prepare_training(model, names, de.LabelledFeatures(features, labels), 3)
    test = TestImages([], labels, torch.from_numpy(features), "others")
    (row,) = measure_gain(model, [tried(model, "zero-shot", train)], test, MCM).rows
    shares, values = np.zeros(12), []
    for left_out in range(3):
        kept = [k for k in range(3) if k != left_out]
        cosines = features.astype(np.float64) @ vectors[kept].T
        score = np.exp(cosines).max(axis=1) / np.exp(cosines).sum(axis=1)
        known, unknown = np.flatnonzero(labels != left_out), np.flatnonzero(labels == left_out)
        wins = np.array([[(score[i] > score[j]) + (score[i] == score[j]) / 2 for j in unknown] for i in known])
        values.append(wins.mean())
        shares[known] += (wins.mean(axis=1) - wins.mean()) / len(known) / 3
        shares[unknown] += (wins.mean(axis=0) - wins.mean()) / len(unknown) / 3
    half = 1.959964 * np.sqrt((shares**2).sum())
    value = np.mean(values)
    assert row.auroc == pytest.approx((value, max(0, value - half), min(1, value + half)), abs=1e-5)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_score_that_learns_is_measured_on_images_it_has_not_seen(drawn: bool) -> None:
    """Random features, in 16 dimensions: fitted on the known images, mahalanobis would tell them from the others."""
    rng = np.random.default_rng(7)
    rows, labels = unit(rng.normal(size=(240, 16))).astype(np.float32), np.repeat(np.arange(6), 40)
    vectors = unit(rng.normal(size=(6, 16)))
    model = de.PrecomputedModel(16, class_vectors=(NAMES, vectors))
    train = prepared(model, rows, labels, 40)
    test = drawn_test(train) if drawn else TestImages([], labels, torch.from_numpy(rows), "others")
    (row,) = measure_gain(model, [tried(model, "zero-shot", train)], test, make_score("mahalanobis")).rows
    assert row.auroc is not None and 0.4 < row.auroc.value < 0.6


def test_left_out_detection_by_a_score_that_learns_is_that_of_scikit_learn() -> None:
    """Mahalanobis in double precision, fitted without the fold of each known image; unknown ones take turns."""
    centres, features, labels = world(3, 30)
    model = de.PrecomputedModel(16, class_vectors=(NAMES, centres))
    train = prepared(model, features, labels, 30)
    test = TestImages([], labels, torch.from_numpy(features), "others")
    (row,) = measure_gain(model, [tried(model, "zero-shot", train)], test, make_score("mahalanobis"), seed=4).rows
    z, found = features.astype(np.float64), []
    for left_out in np.array_split(np.random.default_rng(4).permutation(6), 5):
        kept = np.setdiff1d(np.arange(6), left_out)
        known, unknown = z[np.isin(labels, kept)], z[np.isin(labels, left_out)]
        fold_of = deal_folds(labels[np.isin(labels, kept)].tolist())
        of_known, of_unknown = np.empty(len(known)), np.empty(len(unknown))
        for fold in range(5):
            seen = known[fold_of != fold]
            nearest = (seen @ centres[kept].T).argmax(axis=1)
            means = np.stack([seen[nearest == k].mean(axis=0) for k in range(len(kept))])
            precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(seen - means[nearest]).covariance_)
            turns = np.arange(len(unknown)) % 5
            for rows, mine, values in ((known, fold_of == fold, of_known), (unknown, turns == fold, of_unknown)):
                apart = rows[mine, None] - means
                values[mine] = -np.einsum("nkd,de,nke->nk", apart, precision, apart).min(axis=1)
        truth = np.repeat([1, 0], [len(of_known), len(of_unknown)])
        found.append(roc_auc_score(truth, np.concatenate([of_known, of_unknown])))
    assert row.auroc is not None and row.auroc.value == pytest.approx(np.mean(found), abs=2e-3)


def test_a_score_that_learns_is_not_measured_on_single_images() -> None:
    centres, features, labels = world(1, 1, classes=3)
    model = de.PrecomputedModel(16, class_vectors=(NAMES[:3], centres))
    train = prepare_training(model, NAMES[:3], de.LabelledFeatures(features, labels), 1)
    test = TestImages([], np.array([0, 1]), torch.from_numpy(features[:2]), "others")
    (row,) = measure_gain(model, [tried(model, "zero-shot", train)], test, make_score("knn")).rows
    assert row.auroc is None and "too few" in row.note
    assert measure_gain(model, [tried(model, "zero-shot", train)], test, MCM).rows[0].auroc is not None


def estimate(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value, value - 0.1, value + 0.1)


def rows(*values: tuple[str, float | None, float | None]) -> list[GainRow]:
    return [GainRow(name, estimate(accuracy), estimate(auroc), None, None) for name, accuracy, auroc in values]


def test_the_rule() -> None:
    assert best(rows(("zero-shot", 0.8, 0.9), ("x", 0.9, 0.7), ("y", 0.84, 0.87))) == "y"
    # AUROC is not known of all: accuracy decides.
    assert best(rows(("zero-shot", 0.8, 0.9), ("x", 0.9, None), ("y", 0.84, 0.87))) == "x"
    # Alike: the earlier one.
    assert best(rows(("zero-shot", 0.8, 0.9), ("x", 0.9, 0.8))) == "zero-shot"


def test_what_may_be_chance_is_said_to_be() -> None:
    loss = GainRow("x", Estimate(0.8, 0.7, 0.9), None, Estimate(-0.02, -0.05, 0.01), None)
    (message,) = TuningGain([loss], "x", "images", 10, "mcm").warnings()
    assert "82.0% with zero-shot, 80.0% with x" in message and "may be chance" in message


def test_what_cannot_be_measured_is_not() -> None:
    _, features, labels = world(1, 3)
    vectors = unit(np.random.default_rng(5).normal(size=(6, 16)))
    model = de.PrecomputedModel(16, class_vectors=(NAMES, vectors))
    single = prepared(model, features, labels, 1)
    (row,) = measure_gain(model, [tried(model, "centroids", single)], drawn_test(single), MCM).rows
    assert row.accuracy is None and row.auroc is None and "one image per class" in row.note
    _, others, truth = world(2, 4)
    test = TestImages([], truth, torch.from_numpy(others), "others")
    (row,) = measure_gain(model, [tried(model, "centroids", single)], test, make_score("gl-mcm")).rows
    assert row.accuracy is not None and row.auroc is None and "more than features" in row.note
    two = prepare_training(model, NAMES[:2], de.LabelledFeatures(features[:6], labels[:6]), 3)
    few = TestImages([], truth[:8], torch.from_numpy(others[:8]), "others")
    (row,) = measure_gain(model, [tried(model, "centroids", two)], few, MCM).rows
    assert row.accuracy is not None and row.auroc is None and "at least three classes" in row.note
