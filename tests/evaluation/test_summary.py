"""The few numbers of an evaluation: rows that stand for a group, the best score, detectors side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltaenergy import Detector, PrecomputedClassifier, ZeroShotClassifier
from deltaenergy.evaluation import Evaluation, Group, compare, evaluate
from deltaenergy.evaluation.compare import Difference
from deltaenergy.evaluation.summary import best_score, changes, headline, is_better, measured
from deltaenergy.stats.metrics import Estimate, paired_differences
from tests.colours import ColourModel, paint_sets


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path)


@pytest.fixture
def classifier() -> ZeroShotClassifier:
    return ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])


@pytest.fixture
def found() -> Evaluation:
    """Two open sets, which are pooled, and a primary score that is not the best one."""
    rng = np.random.default_rng(0)
    texts = np.eye(4, 8)
    rows = rng.normal(size=(65, 8))
    rows[:40] = texts[np.arange(40) % 4] + 0.6 * rows[:40]
    known, *others = np.split(rows / np.linalg.norm(rows, axis=1, keepdims=True), [40, 55])
    opened = list(zip(("first", "second"), others))
    classifier = PrecomputedClassifier(texts.astype(np.float32), ["a", "b", "c", "d"])
    return evaluate(classifier, ["entropy", "max-logit"], [("known", known)], open_sets=opened, keep=0.7, resamples=30)


def test_the_headline_is_the_primary_score_on_whole_groups(found: Evaluation) -> None:
    row = headline(found, Group.ID)
    assert row is not None
    assert (row.score, row.closed, row.open, row.open_images) == ("entropy", "known", "all open sets", 25)
    assert headline(found, Group.SHIFTED) is None


def test_kept_counts_the_images_of_all_sets(found: Evaluation) -> None:
    kept = sum(int((~found.is_ood(one)).sum()) for one in found.in_group(Group.OPEN))
    share = measured(found)["kept", Group.OPEN]
    assert share.value == pytest.approx(kept / 25)
    assert ("kept", Group.SHIFTED) not in measured(found)


def test_the_best_score_leads_on_the_same_images(found: Evaluation) -> None:
    best = best_score(found)
    assert best is not None and best.scores == 2 and best.best.score == "max-logit"
    area, next_area = (row.metrics["auroc"].value for row in (best.best, best.second))
    assert area > next_area and best.lead.value == pytest.approx(area - next_area)
    pairs = found.pair(best.second), found.pair(best.best)
    assert best.lead == paired_differences(*pairs, resamples=30)["auroc"], "as many resamples as the evaluation had"


def test_one_score_is_not_ranked(sets: Path, classifier: ZeroShotClassifier) -> None:
    alone = evaluate(classifier, "mcm", [("known", sets / "known")], open_sets=[("grey", sets / "grey")], resamples=10)
    assert best_score(alone) is None


def test_numbers_and_differences_have_the_same_columns(sets: Path, classifier: ZeroShotClassifier) -> None:
    detectors = {"plain": Detector(classifier, "mcm"), "other": Detector(classifier, "max-logit")}
    shifted, opened = [("dark", sets / "dark")], [("grey, of all", sets / "grey")]
    compared = compare(detectors, [("known", sets / "known")], shifted, opened, resamples=20)
    base, other = (measured(one) for one in compared.evaluations.values())
    assert list(other) == [
        ("accuracy", Group.ID),
        ("accuracy", Group.SHIFTED),
        ("auroc", Group.ID),
        ("auroc", Group.SHIFTED),
        ("fpr95", Group.ID),
        ("fpr95", Group.SHIFTED),
        ("kept", Group.ID),
        ("kept", Group.SHIFTED),
        ("kept", Group.OPEN),
    ]
    own = changes(compared, "other")
    for column in other:
        assert own[column].change.value == pytest.approx(other[column].value - base[column].value), column
    assert changes(compared, "plain") == {}


@pytest.mark.parametrize(
    ("metric", "closed", "rise_is_better"),
    [("auroc", "known", True), ("fpr95", "known", False), ("kept", "known", True), ("kept", "", False)],
)
def test_a_rise_is_better_unless_it_counts_mistakes(metric: str, closed: str, rise_is_better: bool) -> None:
    for value in (0.1, -0.1):
        row = Difference("other", metric, closed, "grey", 9, Estimate(value, value, value))
        assert is_better(row) is (rise_is_better is (value > 0))
