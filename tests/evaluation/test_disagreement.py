"""Disagreement of two scores: places and ranks against SciPy, and examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from deltaenergy.errors import InputError
from deltaenergy.evaluation.disagreement import (
    average_ranks,
    disagreement_with,
    disagreements,
    places,
    rank_correlation,
)

numbers = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=40)


@given(numbers)
def test_ranks_are_those_of_scipy(values: list[float]) -> None:
    array = np.array(values)
    assert average_ranks(array) == pytest.approx(rankdata(array))
    assert places(array) == pytest.approx((rankdata(array) - 0.5) / len(array))
    # Units play no part.
    assert places(7 * array + 3) == pytest.approx(places(array))


@given(st.integers(0, 10**6), st.integers(3, 40))
def test_rank_correlation_is_spearmans(seed: int, count: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, count))
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)


def test_the_most_disagreeing_images_worked_by_hand() -> None:
    """Four images; the first score puts the last one on top, the second puts it at the bottom."""
    found = disagreements([1.0, 2.0, 3.0, 4.0], [20.0, 30.0, 40.0, 10.0], 2)
    assert [(one.row, one.first, one.second) for one in found] == [(3, 0.875, 0.125), (0, 0.125, 0.375)]
    assert found[0].difference == 0.75
    assert disagreements([1.0, 2.0], [1.0, 2.0], 0) == []


def test_the_score_least_like_another() -> None:
    values = {"a": [1, 2, 3, 4], "b": [1, 2, 4, 3], "c": [4, 3, 2, 1]}
    assert disagreement_with("a", values).second == "c"
    assert disagreement_with("d", {"a": values["a"], "b": values["b"], "d": values["a"]}).second == "b"


def test_scores_without_any_order() -> None:
    assert rank_correlation([1, 1, 1], [2, 2, 2]) == 1.0
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_wrong_input_is_told() -> None:
    with pytest.raises(InputError, match="3 and 2"):
        disagreements([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="NaN"):
        disagreements([1, float("nan")], [1, 2])
