"""Choosing a score by leaving classes out: against a literal re-enactment, and in cases whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from deltaenergy import Model, PrecomputedClassifier, ZeroShotClassifier, make_score
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.evaluation.choose import (
    CANDIDATES,
    NEAR_ONLY,
    Choice,
    candidate_scores,
    choose,
    choose_from_features,
    features_only,
    rank,
)
from deltaenergy.evaluation.leave_out import folds, resampled_auroc, wins_by_class
from deltaenergy.scores.availability import Given, every_score
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scoring import deal_folds


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def clustered(classes: int = 12, per_class: int = 6, noise: float = 0.6, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Class vectors, unit features around them, and the class of each feature."""
    rng = np.random.default_rng(seed)
    texts = unit(rng.normal(size=(classes, 24)))
    truth = np.repeat(np.arange(classes), per_class)
    return texts, unit(texts[truth] + noise * rng.normal(size=(len(truth), 24)) / np.sqrt(24) * 2), truth


@dataclass(frozen=True)
class Remembers(Score):
    """1 for an image that it has learned from, 0 for any other."""

    name = "remembers"
    summary = formula = paper = "for tests"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        return {"seen": inputs.features}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return (inputs.features @ scorer.learned("seen").T > 0.999).any(dim=1).float()


def names(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def test_agrees_with_fresh_classifiers_and_scikit_learn() -> None:
    """Each fold again, with a classifier that never heard of the left-out classes and scikit-learn's AUROC.

    Fitted scores learn from four fifths of the kept images, and the others are judged; unknown images take turns.
    """
    texts, features, truth = clustered()
    classifier = PrecomputedClassifier(texts, names(12))
    specs = ["mcm", "delta-energy:robust", "multi-delta-energy", "mahalanobis", "max-logit"]
    choice = choose(classifier, features, specs, labels=[f"class {k}" for k in truth], folds=4, seed=3, resamples=20)
    expected: dict[str, list[float]] = {spec: [] for spec in specs}
    for left_out in folds(12, 4, 3):
        kept = np.setdiff1d(np.arange(12), left_out)
        unknown = np.isin(truth, left_out)
        small = PrecomputedClassifier(texts[kept], [f"class {k}" for k in kept])
        for spec in specs:
            rows = torch.from_numpy(features)
            similarities = small.similarities_of_features(rows)
            known = np.flatnonzero(~unknown)  # in the order of classes
            fold_of = np.empty(len(truth), dtype=int)
            fold_of[known] = deal_folds(truth[known].tolist())
            fold_of[unknown] = np.arange(unknown.sum()) % 5
            values = np.empty(len(truth))
            for fold in range(5):
                seen = ~unknown & (fold_of != fold)
                scorer = make_score(spec).bind(small).fit(ScoreInputs(similarities[seen], rows[seen]))
                values[fold_of == fold] = scorer(ScoreInputs(similarities, rows)).numpy()[fold_of == fold]
            expected[spec].append(roc_auc_score(~unknown, values))
    assert choice.folds == 4
    assert {c.spec for c in choice.ranking} == set(specs)
    for candidate in choice.ranking:
        assert candidate.auroc.value == pytest.approx(np.mean(expected[candidate.spec]), abs=1e-6)
        assert candidate.auroc.low <= candidate.auroc.value <= candidate.auroc.high
    values = [candidate.auroc.value for candidate in choice.ranking]
    assert values == sorted(values, reverse=True)
    assert choice.best == choice.ranking[0].spec
    assert choice.ranking[0].behind == (0.0, 0.0, 0.0)


def test_resampled_auroc_is_scikit_learns_with_class_weights() -> None:
    rng = np.random.default_rng(0)
    known_class, unknown_class = rng.integers(0, 4, 50), rng.integers(4, 7, 30)
    # Few distinct values, so that ties matter.
    known, unknown = rng.integers(2, 9, 50).astype(float), rng.integers(0, 7, 30).astype(float)
    weights = rng.integers(0, 3, (5, 7)).astype(float)
    weights[0, 4:] = 0
    wins = wins_by_class(known, known_class, unknown, unknown_class, 7)
    found = resampled_auroc(wins, known_class, unknown_class, weights)
    assert np.isnan(found[0])
    for row, value in zip(weights[1:], found[1:]):
        sample_weight = np.concatenate([row[known_class], row[unknown_class]])
        truth = np.repeat([1, 0], [50, 30])
        expected = roc_auc_score(truth, np.concatenate([known, unknown]), sample_weight=sample_weight)
        assert value == pytest.approx(expected)


def test_the_score_that_works_wins() -> None:
    """Kept images stand near their class vector and unknown ones far from all: max-logit sees it, msp cannot."""
    rng = np.random.default_rng(1)
    classes, per_class = 10, 20
    texts = unit(np.eye(classes, classes + 1) + 0.0)
    truth = np.repeat(np.arange(classes), per_class)
    # Every image has its own share of the last direction, which no class has: it scales all cosines alike.
    features = unit(texts[truth] + 0.05 * rng.normal(size=(len(truth), classes + 1)))
    classifier = PrecomputedClassifier(texts, names(classes))
    choice = choose(
        classifier, features, ["entropy(temperature=1000)", "max-logit"], labels=[f"class {k}" for k in truth]
    )
    assert choice.best == "max-logit"
    assert choice.ranking[0].auroc.value == 1.0
    assert choice.ranking[0].fpr95 == 0.0


def test_seed_decides_the_deal_and_nothing_else() -> None:
    texts, features, truth = clustered(noise=1.0)
    classifier = PrecomputedClassifier(texts, names(12))
    labels = [f"class {k}" for k in truth]

    def run(seed: int, order: np.ndarray) -> Choice:
        shuffled = [labels[i] for i in order]
        return choose(classifier, features[order], ["mcm", "energy"], labels=shuffled, seed=seed, resamples=50)

    straight, shuffled = np.arange(len(truth)), np.random.default_rng(0).permutation(len(truth))
    assert run(1, straight) == run(1, straight)
    for one, other in zip(run(1, straight).ranking, run(1, shuffled).ranking):
        assert one.spec == other.spec
        np.testing.assert_allclose(one.auroc, other.auroc, atol=1e-12)
    assert run(1, straight).ranking[0].auroc != run(2, straight).ranking[0].auroc


def test_classes_without_images_stay_on_the_list_in_every_fold() -> None:
    texts, features, truth = clustered(classes=6)
    few = truth < 3
    classifier = PrecomputedClassifier(texts, names(6))
    choice = choose(classifier, features[few], ["mcm"], labels=[f"class {k}" for k in truth[few]], resamples=50)
    assert (choice.classes, choice.images, choice.folds) == (3, 18, 3)


def test_a_name_that_stands_twice_is_left_out_with_both_its_columns() -> None:
    """Were the second column left on the list, the left-out images would match it and pass for known."""
    texts, features, truth = clustered(classes=4, noise=0.1)
    labels = [f"class {k}" for k in truth]
    once = choose(PrecomputedClassifier(texts, names(4)), features, ["max-logit"], labels=labels)
    with pytest.warns(UserWarning, match="Duplicate class names"):
        twice = PrecomputedClassifier(np.concatenate([texts, texts]), names(4) * 2)
    both = choose(twice, features, ["max-logit"], labels=[label.replace(" ", "_").upper() for label in labels])
    assert both == once


def test_default_candidates_are_names_that_make_scores_and_all_can_be_compared() -> None:
    texts, features, truth = clustered()
    choice = choose(PrecomputedClassifier(texts, names(12)), features, labels=[f"class {k}" for k in truth])
    assert [make_score(spec).spec for spec in CANDIDATES] == list(CANDIDATES)
    found = {c.spec for c in choice.ranking}
    # The class vectors have no text tower behind them: no negative labels.
    assert found == {
        *CANDIDATES,
        *(
            s.spec
            for s in every_score()
            if s.needs <= {Need.FEATURES, Need.ID_DATA} and s.own_to is None and s.missing is None
        ),
    }
    assert {"react", "delta-energy:robust"} <= found
    assert "far unknowns" in choice.to_dict()["caveat"]
    assert choice.caveat == NEAR_ONLY
    best, second = choice.ranking[:2]
    assert repr(choice).startswith(f"<Choice: best {best.spec}, AUROC {100 * best.auroc.value:.1f}%")
    assert f"next {second.spec}, " in repr(choice) and "<table>" in choice._repr_html_()


def test_labelled_folder_of_images(tiny_clip: Model, photos: Path) -> None:
    choice = choose(ZeroShotClassifier(tiny_clip, ["cat", "dog", "car"]), photos, ["mcm", "energy"], resamples=10)
    assert (choice.images, choice.classes, choice.folds) == (8, 2, 2)
    (photos / "dog" / "broken.png").write_bytes(b"no picture")
    choice = choose(ZeroShotClassifier(tiny_clip, ["cat", "dog", "car"]), photos, ["mcm"], resamples=10)
    assert choice.images == 8
    assert [image.id.endswith("broken.png") for image in choice.unreadable] == [True]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (None, {}, "pass labels"),
        (["class 0"] * 5, {}, r"labels.*5.*72"),
        (["class 0"] * 72, {}, r"two classes.*1"),
        (
            ["class 0", "klass 1"] * 36,
            {},
            r"'klass 1'.*'class 1'",
        ),
        (["class 0", "class 1"] * 36, {"folds": 1}, "folds must be at least 2"),
        (["class 0", "class 1"] * 36, {"scores": []}, "at least one score"),
        (["class 0", "class 1"] * 36, {"scores": ["mmc"]}, r"'mmc'.*Did you mean"),
    ],
)
def test_wrong_use_is_said_plainly(labels: list[str] | None, options: dict[str, object], message: str) -> None:
    texts, features, _ = clustered()
    with pytest.raises(InputError, match=message):
        choose(PrecomputedClassifier(texts, names(12)), features, labels=labels, **options)  # type: ignore[arg-type]


def test_labels_are_checked_before_anything_is_encoded(
    tiny_clip: Model, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(tiny_clip), "image_features", lambda *_: pytest.fail("encoded"))
    with pytest.raises(InputError, match=r"'dog'.*2 classes"):
        choose(ZeroShotClassifier(tiny_clip, ["cat", "car"]), photos)


def test_images_without_class_folders_are_refused(tiny_clip: Model) -> None:
    picture = Image.new("RGB", (32, 32))
    with pytest.raises(InputError, match="has no class"):
        choose(ZeroShotClassifier(tiny_clip, ["cat", "dog"]), [picture, picture], ["mcm"])


def test_rank_by_hand() -> None:
    """b is best; a and c are equal, so the earlier one comes first; the resamples give the intervals."""
    auroc = np.array([0.70, 0.72, 0.70 + 1e-12])
    drawn = np.stack([auroc - 0.1, auroc + 0.1], axis=1)
    ranking = rank(["a", "b", "c"], auroc, 1 - auroc, drawn, 1.0)
    assert [c.spec for c in ranking] == ["b", "a", "c"]
    assert [c.auroc.value for c in ranking] == pytest.approx([0.72, 0.70, 0.70])
    assert ranking[0].auroc == pytest.approx((0.72, 0.62, 0.82))
    assert [c.behind.value for c in ranking] == pytest.approx([0, 0.02, 0.02])
    assert [c.fpr95 for c in ranking] == pytest.approx([0.28, 0.30, 0.30])


def test_a_score_that_remembers_is_not_judged_on_what_it_saw() -> None:
    """Random features, classes without meaning: nothing can be told, by a score that keeps images no more."""
    rng = np.random.default_rng(5)
    texts, features = unit(rng.normal(size=(6, 64))), unit(rng.normal(size=(120, 64)))
    labels = [f"class {i % 6}" for i in range(120)]

    choice = choose(PrecomputedClassifier(texts, names(6)), features, [Remembers()], labels=labels, resamples=10)
    assert 0.3 < choice.ranking[0].auroc.value < 0.7


def test_a_classifier_that_looks_at_pixels_is_refused_before_anything_is_encoded(
    tiny_clip: Model, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = ZeroShotClassifier(tiny_clip, ["cat", "dog"])
    monkeypatch.setattr(type(classifier), "needs_to_predict", frozenset({Need.PIXELS}))
    monkeypatch.setattr(type(tiny_clip), "image_features", lambda *_: pytest.fail("encoded"))
    with pytest.raises(InputError, match="needs pixels"):
        choose(classifier, photos, ["mcm"])


def test_candidates_need_no_more_than_choose_gives() -> None:
    """Whatever needs there will be: a score with another one is left out, not tried."""
    given = features_only(Given())
    assert set(given.lacks) == set(Need) - {Need.FEATURES, Need.TEXTS, Need.ID_DATA}
    assert all(score.needs <= {Need.FEATURES, Need.TEXTS, Need.ID_DATA} for score in candidate_scores(given)[0])


def test_where_the_best_score_and_a_rival_differ() -> None:
    """Places by SciPy's ranks, of scores that are computed from the similarities alone."""
    from scipy.stats import rankdata, spearmanr

    texts, features, truth = clustered(classes=6, per_class=5)
    classifier = PrecomputedClassifier(texts, names(6))
    choice = choose(classifier, features, ["mcm", "max-logit"], labels=[f"class {k}" for k in truth], resamples=20)
    found = choice.disagreement(3)
    cosines = features.astype(np.float64) @ texts.T.astype(np.float64)
    exps = np.exp(cosines)
    by = {"mcm": (exps / exps.sum(axis=1, keepdims=True)).max(axis=1), "max-logit": cosines.max(axis=1)}
    best, rival = (rankdata(by[spec]) for spec in (found.first, found.second))
    assert {found.first, found.second} == set(by) and found.first == choice.best
    assert found.correlation == pytest.approx(spearmanr(best, rival).statistic)
    order = np.argsort(-np.abs(best - rival), kind="stable")
    assert sorted(abs(one.difference) for one in found.images) == pytest.approx(
        sorted(np.abs(best - rival)[order[:3]] / len(truth))
    )
    for one in found.images:
        assert one.first == pytest.approx((best[one.row] - 0.5) / len(truth))
        assert one.second == pytest.approx((rival[one.row] - 0.5) / len(truth))
    told = found.to_dict(lambda row: {"image": f"row {row}"})["images"]
    assert told[0]["image"] == f"row {found.images[0].row}"
    with pytest.raises(InputError, match="two candidate scores"):
        choose_from_features(classifier, torch.from_numpy(features), truth, ["mcm"], resamples=20).disagreement()
