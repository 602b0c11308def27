"""delta-energy against the paper's equations (2)–(4), evaluated literally in float64."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from deltaenergy.errors import InputError
from deltaenergy.scores import delta_energy, make_score, msp
from deltaenergy.scores.delta_energy import _index_of_largest
from tests.sampling import examples


def literal(similarities: np.ndarray, tau: float, c: int, reset: float) -> np.ndarray:
    """E1 − E0 with each of the top c classes reset in turn, as the paper writes it."""
    logits = similarities.astype(np.float64) / tau
    scores = []
    for row in logits:
        top = np.argsort(-row, kind="stable")[:c]
        e0 = -logsumexp(row)
        e1 = 0.0
        for j in top:
            changed = row.copy()
            changed[j] = reset / tau
            e1 -= logsumexp(changed) / len(top)
        scores.append(e1 - e0)
    return np.array(scores)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    # 1e-5 relative; the absolute part is what the literal float64 form itself loses by cancellation.
    np.testing.assert_array_less(np.abs(actual - expected), 1e-5 * np.abs(expected) + 1e-12)


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 1_000, 100_000])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 100.0])
def test_float32_equals_the_literal_form(classes: int, spread: float) -> None:
    rng = np.random.default_rng(classes)
    tau = 0.01
    similarities = (rng.uniform(-spread, spread, (4, classes)) * tau).astype(np.float32)
    for c in {1, 2, 3, 4, min(classes, 50)}:
        for reset in (0.0, -1.0, 0.002, 1.0):
            assert_close(delta_energy(similarities, tau, c, reset), literal(similarities, tau, c, reset))


def test_every_class_may_be_reset() -> None:
    rng = np.random.default_rng(0)
    similarities = rng.uniform(-1, 1, (3, 300)).astype(np.float32)
    assert_close(delta_energy(similarities, 0.01, 300), literal(similarities, 0.01, 300, 0.0))
    many = rng.uniform(0.1, 0.3, (1, 100_000)).astype(np.float32)
    # The literal form with c = K is K passes over K numbers; this is its closed form, in float64.
    a = many.astype(np.float64)[0] / 0.01
    z = np.exp(a).sum()
    expected = -np.mean(np.log1p((1.0 - np.exp(a)) / z))
    assert_close(delta_energy(many, 0.01, 100_000), np.array([expected]))


@settings(max_examples=examples(300), deadline=None)
@given(
    # Halves make ties common; the range is that of CLIP logits and far beyond.
    logits=st.lists(st.integers(-200, 200).map(lambda i: i / 2), min_size=1, max_size=12),
    c=st.integers(1, 14),
    tau=st.sampled_from([0.001, 0.01, 0.05, 1.0, 30.0]),
    reset=st.integers(-100, 100),
)
def test_ties_and_extremes(logits: list[float], c: int, tau: float, reset: int) -> None:
    similarities = (np.array([logits]) * tau).astype(np.float32)
    value = float(np.float32(reset * tau))
    assert_close(delta_energy(similarities, tau, c, value), literal(similarities, tau, c, value))


def test_worked_by_hand() -> None:
    """Two classes, τ = 1, logits log 3 and 0, reset 0: E0 = −log 4, E1 = −½(log 2 + log 4), so ΔE = ½ log 2."""
    score = delta_energy(np.array([[np.log(3.0), 0.0]]), tau=1.0, c=2, reset=0.0)
    assert score[0] == pytest.approx(0.5 * np.log(2), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_c_1_at_clip_temperature_ranks_as_msp(seed: int) -> None:
    similarities = np.random.default_rng(seed).uniform(0.1, 0.35, (40, 20))
    order = np.argsort(delta_energy(similarities, 0.01, 1))
    np.testing.assert_array_equal(order, np.argsort(msp(similarities, 0.01)))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_never_negative_while_the_reset_is_below_the_top_classes(seed: int, c: int) -> None:
    similarities = np.random.default_rng(seed).uniform(0.0, 0.4, (20, 6)).astype(np.float32)
    assert (delta_energy(similarities, 0.01, c) >= 0).all()


def test_tensors_in_tensors_out_and_the_input_is_left_alone() -> None:
    similarities = torch.rand(5, 7, dtype=torch.float64)
    before = similarities.clone()
    result = delta_energy(similarities)
    assert isinstance(result, torch.Tensor)
    assert result.dtype == torch.float64
    assert torch.equal(similarities, before)
    assert isinstance(delta_energy(similarities.float().numpy()), np.ndarray)
    assert delta_energy(similarities.half()).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0}, "tau"),
        ({"tau": -1.0}, "tau"),
        ({"c": 0}, "c must"),
        ({"c": 1.5}, "c must"),
        ({"reset": np.inf}, "reset"),
    ],
)
def test_senseless_parameters_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        delta_energy(np.zeros((1, 2)), **settings)
    with pytest.raises(InputError, match=message):
        make_score("delta-energy", **settings)


@pytest.mark.parametrize("classes", [1, 63, 64, 255, 256, 257, 319, 320, 1000])
def test_the_fast_arg_max_finds_a_largest_class(classes: int) -> None:
    rng = np.random.default_rng(classes)
    distinct, tied = rng.random((300, classes)), rng.integers(0, 40, (300, classes)) / 40.0
    for similarities in map(torch.from_numpy, (distinct, tied)):
        found = similarities.gather(1, _index_of_largest(similarities))[:, 0]
        assert torch.equal(found, similarities.amax(dim=1))


def test_large_similarities_cost_no_digits() -> None:
    """s_(1)/τ ≈ 100 is rounded by up to 4e-6 in single precision; the score must not be."""
    similarities = np.random.default_rng(0).uniform(0.985, 0.987, (200, 5)).astype(np.float32)
    expected = literal(similarities, 0.01, 2, 0.0)
    np.testing.assert_allclose(delta_energy(similarities, 0.01, 2), expected, rtol=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    similarities = np.random.default_rng(0).uniform(0.1, 0.3, (50, 30)).astype(np.float32)
    whole = delta_energy(similarities)
    # By sys.modules, since the package's attribute of that name is the function.
    monkeypatch.setattr(sys.modules["deltaenergy.scores.delta_energy"], "_BLOCK_ENTRIES", 7 * 30)
    np.testing.assert_array_equal(delta_energy(similarities), whole)


def test_gradients_flow_through_the_score() -> None:
    similarities = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: delta_energy(s, 0.5, 2), (similarities,))


def test_defaults_are_the_paper_s() -> None:
    assert make_score("delta-energy").params == {"tau": 0.01, "c": 2, "reset": 0.0}
    similarities = np.random.default_rng(0).uniform(0.1, 0.3, (20, 7))
    np.testing.assert_allclose(delta_energy(similarities), literal(similarities, 0.01, 2, 0.0), rtol=1e-9)
