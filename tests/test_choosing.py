"""Choosing a score by leaving classes out: against a literal re-enactment, and in cases whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from deltaenergy import Model, PrecomputedClassifier, ZeroShotClassifier, choosing, make_score
from deltaenergy.choosing import choose
from deltaenergy.errors import InputError
from deltaenergy.scores.base import ScoreInputs


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def clustered(classes: int = 12, per_class: int = 6, noise: float = 0.6, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Class vectors, unit features around them, and the class of each feature."""
    rng = np.random.default_rng(seed)
    texts = unit(rng.normal(size=(classes, 24)))
    truth = np.repeat(np.arange(classes), per_class)
    return texts, unit(texts[truth] + noise * rng.normal(size=(len(truth), 24)) / np.sqrt(24) * 2), truth


def names(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def test_agrees_with_fresh_classifiers_and_scikit_learn() -> None:
    """Each fold again, with a classifier that never heard of the left-out classes and scikit-learn's AUROC."""
    texts, features, truth = clustered()
    classifier = PrecomputedClassifier(texts, names(12))
    specs = ["mcm", "delta-energy:robust", "multi-delta-energy", "max-logit"]
    choice = choose(classifier, features, specs, labels=[f"class {k}" for k in truth], folds=4, seed=3, resamples=20)
    expected: dict[str, list[float]] = {spec: [] for spec in specs}
    for left_out in choosing._deal(12, 4, 3):
        kept = np.setdiff1d(np.arange(12), left_out)
        unknown = np.isin(truth, left_out)
        small = PrecomputedClassifier(texts[kept], [f"class {k}" for k in kept])
        for spec in specs:
            rows = torch.from_numpy(features)
            similarities = small.similarities_of_features(rows)
            known = torch.from_numpy(~unknown)
            scorer = make_score(spec).bind(small).fit(ScoreInputs(similarities[known], rows[known]))
            values = scorer(ScoreInputs(similarities, rows)).numpy()
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
    found = choosing._resampled_auroc(known, known_class, unknown, unknown_class, weights)
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

    def run(seed: int, order: np.ndarray) -> choosing.Choice:
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
    with pytest.warns(UserWarning, match="more than once"):
        twice = PrecomputedClassifier(np.concatenate([texts, texts]), names(4) * 2)
    both = choose(twice, features, ["max-logit"], labels=[label.replace(" ", "_").upper() for label in labels])
    assert both == once


def test_default_candidates_are_names_that_make_scores_and_all_can_be_compared() -> None:
    texts, features, truth = clustered()
    choice = choose(PrecomputedClassifier(texts, names(12)), features, labels=[f"class {k}" for k in truth])
    assert [make_score(spec).spec for spec in choosing.CANDIDATES] == list(choosing.CANDIDATES)
    assert {c.spec for c in choice.ranking} == set(choosing.CANDIDATES)
    assert "far-OOD" in choice.to_dict()["caveat"]


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
        (None, {}, "give labels"),
        (["class 0"] * 5, {}, "labels has 5 entries for 72 rows"),
        (["class 0"] * 72, {}, "at least two classes, and found 1"),
        (
            ["class 0", "klass 1"] * 36,
            {},
            "is of class 'klass 1', which is not among the 12 classes. Did you mean 'class 1'",
        ),
        (["class 0", "class 1"] * 36, {"folds": 1}, "folds must be at least 2"),
        (["class 0", "class 1"] * 36, {"scores": []}, "at least one candidate"),
        (["class 0", "class 1"] * 36, {"scores": ["mmc"]}, "Unknown score 'mmc'. Did you mean"),
    ],
)
def test_wrong_use_is_said_plainly(labels: list[str] | None, options: dict[str, object], message: str) -> None:
    texts, features, _ = clustered()
    with pytest.raises(InputError, match=message):
        choose(PrecomputedClassifier(texts, names(12)), features, labels=labels, **options)  # type: ignore[arg-type]


def test_labels_are_checked_before_anything_is_encoded(tiny_clip: Model, photos: Path) -> None:
    encoded: list[int] = []
    with pytest.raises(InputError, match="is of class 'dog', which is not among the 2 classes"):
        choose(ZeroShotClassifier(tiny_clip, ["cat", "car"]), photos, progress=lambda done, total: encoded.append(done))
    assert not encoded


def test_images_without_class_folders_are_refused(tiny_clip: Model) -> None:
    picture = Image.new("RGB", (32, 32))
    with pytest.raises(InputError, match="has no class"):
        choose(ZeroShotClassifier(tiny_clip, ["cat", "dog"]), [picture, picture], ["mcm"])
