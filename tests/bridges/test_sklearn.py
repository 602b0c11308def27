"""The scikit-learn estimators: its own checks, and what open sets ask beyond them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from deltaenergy.bridges.sklearn import OpenSetClassifier, OutlierDetector, _Lift


@parametrize_with_checks(
    [OpenSetClassifier(), OpenSetClassifier("centroids"), OutlierDetector(), OutlierDetector("knn")]
)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(seed: int, count: int, centres: list[tuple[float, ...]]) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(centres)
    return np.array(centres)[labels] + rng.normal(0, 0.4, (count, len(centres[0]))), labels


CENTRES = [(4.0, 0.0, 0.0), (0.0, 4.0, 0.0), (0.0, 0.0, 4.0)]


@pytest.mark.parametrize("names", [["dog", "cat", "horse"], [7, 3, 5]])
def test_known_ones_are_named_and_unknown_ones_are_not(names: list[Any]) -> None:
    x, y = blobs(0, 600, CENTRES)
    labels = np.array(names)[y]
    strange, _ = blobs(1, 100, [(-6.0, -6.0, -6.0)])
    new, truth = blobs(2, 300, CENTRES)
    unknown = -1 if isinstance(names[0], int) else "none of these"
    clf = OpenSetClassifier(ood_score="mahalanobis", unknown=unknown).fit(x, labels)
    found = clf.predict(new)
    known = found != unknown
    assert 0.9 < known.mean() <= 1 and (found[known] == np.array(names)[truth][known]).all()
    assert (clf.predict(strange) == unknown).all()
    assert (clf.is_known(new) == known).all()
    assert clf.threshold_ is None and clf.score_samples(strange).max() < np.median(clf.score_samples(new))
    closed = OpenSetClassifier(ood_score="mahalanobis").fit(x, labels)
    assert set(closed.predict(strange)) <= set(names), "without a label for unknown ones a class is always named"


def test_the_threshold_is_set_on_rows_that_were_not_learned_from() -> None:
    x, y = blobs(0, 900, CENTRES)
    clf = OpenSetClassifier().fit(x, y)
    assert clf.guarantee_.holds and clf.guarantee_.images == 270 and clf.guarantee_.folds == 5
    few = OpenSetClassifier().fit(x[:30], y[:30])
    assert few.guarantee_.trained and not few.guarantee_.holds


def test_scale_and_place_of_the_features_do_not_matter() -> None:
    x, y = blobs(0, 200, CENTRES)
    new, _ = blobs(1, 50, CENTRES)
    one, other = (OpenSetClassifier("centroids").fit(a * x + b, y) for a, b in ((1, 0), (1000, 5e4)))
    assert np.allclose(one.predict_proba(new), other.predict_proba(1000 * new + 5e4), atol=1e-4)


def test_nothing_is_lost_when_features_become_unit_vectors() -> None:
    x = np.random.default_rng(0).normal(3, 50, (40, 5))
    lift = _Lift(x)
    z = lift(x).astype(np.float64)
    assert np.allclose(np.linalg.norm(z, axis=1), 1)
    assert np.allclose(z[:, :-1] / z[:, -1:] * lift.scale + lift.mean, x, rtol=1e-4, atol=1e-2)
    assert lift.scale == pytest.approx(np.sqrt(np.square(x - x.mean(axis=0)).sum(axis=1).mean()))
    assert np.isfinite(lift(np.full((1, 5), 1e300))).all()


def test_pipelines_and_grid_searches() -> None:
    x, y = blobs(0, 240, CENTRES)
    pipeline = make_pipeline(StandardScaler(), OpenSetClassifier("centroids"))
    search = GridSearchCV(pipeline, {"opensetclassifier__ood_score": ["mcm", "energy"]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.95


def test_outliers() -> None:
    x, _ = blobs(0, 400, [(1.0, 2.0, 3.0)])
    new, _ = blobs(1, 400, [(1.0, 2.0, 3.0)])
    strange, _ = blobs(2, 50, [(9.0, 2.0, 3.0)])
    for spec in ("mahalanobis", "knn"):
        found = OutlierDetector(spec).fit(x)
        assert (found.predict(strange) == -1).all() and 0.9 < (found.predict(new) == 1).mean() < 1
        assert found.guarantee_.holds


def test_mistakes_are_told() -> None:
    x, y = blobs(0, 60, CENTRES)
    with pytest.raises(ValueError, match=r"Unknown .*method 'linear-prob'"):
        OpenSetClassifier("linear-prob").fit(x, y)
    with pytest.raises(ValueError, match="Unknown score"):
        OutlierDetector("mahalanobi").fit(x)
    with pytest.raises(ValueError, match="held_out"):
        OpenSetClassifier(held_out=1.0).fit(x, y)
    with pytest.raises(ValueError, match="one class"):
        OpenSetClassifier().fit(x, np.zeros(60))


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import deltaenergy as de; de.Detector\n"
        "try:\n    import deltaenergy.bridges.sklearn\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'deltaenergy[sklearn]'" in done.stdout
