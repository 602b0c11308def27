"""Per-class accuracy, confusion, reliability and risk–coverage against scikit-learn and plain loops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, recall_score

from deltaenergy import ZeroShotClassifier
from deltaenergy.errors import InputError
from deltaenergy.evaluation import Group, evaluate
from deltaenergy.evaluation.classification import class_rows, classification, confusion, reliability, risk_coverage
from tests.colours import ColourModel, paint_sets

CLASSES = ["a", "b", "c", "d"]
labelled = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)
judged = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(labelled)
def test_classes_and_confusion_are_scikit_learns(pairs):
    truth, named = (np.array(part) for part in zip(*pairs))
    matrix = confusion_matrix(truth, named, labels=range(4))
    found = np.zeros((4, 4), dtype=int)
    for row in confusion(truth, named, CLASSES):
        found[CLASSES.index(row.truth), CLASSES.index(row.named)] = row.images
        assert row.images > 0
    np.testing.assert_array_equal(found, matrix)
    recall = recall_score(truth, named, labels=range(4), average=None, zero_division=np.nan)
    rows = {row.name: row for row in class_rows(truth, truth == named, CLASSES)}
    assert set(rows) == {CLASSES[i] for i in set(truth.tolist())}
    for name, row in rows.items():
        assert row.accuracy.value == pytest.approx(recall[CLASSES.index(name)])
        assert row.images == matrix[CLASSES.index(name)].sum()
        assert row.accuracy.low <= row.accuracy.value <= row.accuracy.high


@given(judged)
def test_bins_are_scikit_learns_and_the_error_is_a_plain_loop(pairs):
    confidence, right = np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])
    error, bins = reliability(confidence, right)
    accuracy, mean = calibration_curve(right, confidence, n_bins=15)
    np.testing.assert_allclose([one.accuracy for one in bins], accuracy)
    np.testing.assert_allclose([one.confidence for one in bins], mean)
    expected = 0.0
    for i in range(15):
        # scikit-learn's edges; an edge belongs to the bin below it.
        low, high = np.linspace(0, 1, 16)[i : i + 2]
        inside = [(p, r) for p, r in pairs if (low < p <= high) or (i == 0 and p == 0)]
        if inside:
            gap = abs(sum(r for _, r in inside) / len(inside) - sum(p for p, _ in inside) / len(inside))
            expected += len(inside) / len(pairs) * gap
    assert error == pytest.approx(expected)


def test_reliability_by_hand():
    # Two at 0.9 of which one is right (gap 0.4), two at 0.5 of which both are right (gap 0.5).
    error, bins = reliability(np.array([0.9, 0.9, 0.5, 0.5]), np.array([True, False, True, True]))
    assert error == pytest.approx(0.45) and [one.images for one in bins] == [2, 2]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0, float("nan")]), st.booleans()), min_size=1, max_size=40))
def test_risk_and_coverage_are_a_plain_loop(pairs):
    score, right = np.array([s for s, _ in pairs]), np.array([r for _, r in pairs])
    ranked = np.where(np.isnan(score), -9.0, score)
    risks = [1 - right[ranked >= own].mean() for own in ranked]
    found = risk_coverage(score, right)
    assert found.aurc == pytest.approx(np.mean(risks))
    for coverage, risk in zip(found.coverage, found.risk):
        kept = round(coverage * len(pairs))
        bound = np.sort(ranked)[::-1][kept - 1]
        assert kept == (ranked >= bound).sum() and risk == pytest.approx(1 - right[ranked >= bound].mean())
    assert found.coverage[-1] == 1 and found.risk[-1] == pytest.approx(1 - right.mean())


def test_risk_by_hand():
    # From the top: right, wrong, right, wrong: risks 0, 1/2, 1/3, 1/2.
    found = risk_coverage(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, False, True, False]))
    assert found.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


@pytest.mark.parametrize("measure", [reliability, risk_coverage])
def test_nothing_to_measure_is_an_error(measure):
    with pytest.raises(InputError, match="got 0, 0"):
        measure(np.zeros(0), np.zeros(0, dtype=bool))


def test_of_an_evaluation(tmp_path):
    sets = paint_sets(tmp_path)
    names = ["red", "green", "blue", "red"]  # a name that stands twice is one class
    found = evaluate(
        ZeroShotClassifier(ColourModel(), names),
        ["mcm"],
        [("known", sets / "known")],
        [("dark", sets / "dark")],
        [("grey", sets / "grey")],
        resamples=10,
    )
    known, dark = classification(found)
    assert (known.group, known.images, dark.group) == (Group.ID, 19, Group.SHIFTED)
    assert [(row.name, row.images, row.accuracy.value) for row in known.classes] == [
        ("red", 7, pytest.approx(6 / 7)),
        ("green", 6, 1),
        ("blue", 6, 1),
    ]
    assert {(row.truth, row.named): row.images for row in known.confusion} == {
        ("red", "red"): 6,
        ("red", "blue"): 1,
        ("green", "green"): 6,
        ("blue", "blue"): 6,
    }
    assert [curve.of for curve in known.risk_coverage] == ["known images", "known and open images"]
    assert known.risk_coverage[1].images == 27 and known.risk_coverage[1].risk[-1] == pytest.approx(9 / 27)
    written = json.loads(json.dumps(found.to_dict()))["classification"]
    assert written[0]["reliability"]["ece"] == known.ece
    assert sum(row["images"] for row in written[0]["confusion"]) == 19


def test_without_labels_there_is_nothing_to_say(tmp_path):
    sets = paint_sets(tmp_path)
    found = evaluate(ZeroShotClassifier(ColourModel(), ["red"]), ["mcm"], [("grey", sets / "grey")], resamples=10)
    assert classification(found) == [] and found.to_dict()["classification"] == []
