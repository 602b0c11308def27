"""Transport plans against a plain Sinkhorn iteration in NumPy, by their properties, and with gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.classifiers import plot
from deltaenergy.classifiers.plot import transport_plan, transported


def draw(seed: int, *shape: int, spread: float = 0.3) -> Any:
    """Similarities such as cosines are."""
    return np.random.default_rng(seed).uniform(0.2 - spread, 0.2 + spread, shape)


def reference_plan(similarities: Any, epsilon: float, steps: int = 5000) -> Any:
    """Cuturi's iteration on the kernel itself, one problem (P, N) at a time."""
    kernel = np.exp((similarities - similarities.max()) / epsilon)
    rows, columns = np.full(len(kernel), 1 / len(kernel)), np.full(kernel.shape[1], 1 / kernel.shape[1])
    v = np.ones_like(columns)
    for _ in range(steps):
        u = rows / (kernel @ v)
        v = columns / (kernel.T @ u)
    return u[:, None] * kernel * v


def entropic_cost(similarities: Any, epsilon: float) -> float:
    """min_T Σ T (1 − s) + ε Σ T log T."""
    plan = reference_plan(similarities, epsilon)
    return float(np.sum(plan * (1 - similarities)) + epsilon * np.sum(plan * np.log(plan)))


# Seed, P, N, ε. Similarities lie within 0.6: a step shrinks the error by tanh²(0.6/(2ε)), to 0.58 of it at most, and a
# hundred steps are always enough.
PROBLEMS = st.tuples(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 5), st.floats(0.3, 2.0))


@settings(max_examples=50)
@given(PROBLEMS)
def test_plans_are_those_of_the_plain_iteration(problem: tuple[int, int, int, float]) -> None:
    seed, patches, prompts, epsilon = problem
    s = draw(seed, 2, 3, patches, prompts)
    found = transport_plan(torch.from_numpy(s).float(), epsilon).double().numpy()
    for i in range(2):
        for k in range(3):
            np.testing.assert_allclose(found[i, k], reference_plan(s[i, k], epsilon), atol=2e-5)


@pytest.mark.parametrize("seed", range(5))
def test_plans_at_the_papers_epsilon(seed: int) -> None:
    """49 patches and four prompts, in single precision."""
    s = draw(seed, 3, 49, 4)
    found = transport_plan(torch.from_numpy(s).float(), 0.1).double()
    for k in range(3):
        np.testing.assert_allclose(found[k], reference_plan(s[k], 0.1), atol=2e-5)
    np.testing.assert_allclose(found.sum(dim=-2), np.full((3, 4), 0.25), rtol=1e-5)
    np.testing.assert_allclose(found.sum(dim=-1), np.full((3, 49), 1 / 49), atol=1.1e-6, rtol=0)


@settings(max_examples=50)
@given(PROBLEMS)
def test_columns_are_exact_and_rows_nearly(problem: tuple[int, int, int, float]) -> None:
    seed, patches, prompts, epsilon = problem
    plan = transport_plan(torch.from_numpy(draw(seed, 4, patches, prompts)), epsilon)
    np.testing.assert_allclose(plan.sum(dim=-2), np.full((4, prompts), 1 / prompts), rtol=1e-12)
    np.testing.assert_allclose(plan.sum(dim=-1), np.full((4, patches), 1 / patches), atol=1.0001e-6, rtol=0)


@given(PROBLEMS)
def test_order_does_not_matter(problem: tuple[int, int, int, float]) -> None:
    seed, patches, prompts, epsilon = problem
    rng = np.random.default_rng(seed)
    s = torch.from_numpy(draw(seed, patches, prompts))
    rows, columns = rng.permutation(patches), rng.permutation(prompts)
    whole = transport_plan(s, epsilon)
    np.testing.assert_allclose(transport_plan(s[rows][:, columns], epsilon), whole[rows][:, columns], atol=3e-6)


@given(PROBLEMS)
def test_the_score_falls_with_epsilon_to_the_grand_mean(problem: tuple[int, int, int, float]) -> None:
    seed, patches, prompts, epsilon = problem
    s = torch.from_numpy(draw(seed, 1, 1, patches, prompts))
    scores = [float(transported(s, epsilon * factor)) for factor in (1, 1.5, 4, 1e6)]
    # Rows are right to 1e-6 each.
    assert all(first >= second - 1e-5 for first, second in itertools.pairwise(scores))
    assert scores[-1] == pytest.approx(float(s.mean()), abs=1e-6)


def test_one_prompt_or_equal_ones_give_the_mean_cosine() -> None:
    s = torch.from_numpy(draw(0, 2, 3, 7, 1))
    torch.testing.assert_close(transported(s, 0.1), s.mean(dim=(-2, -1)))
    torch.testing.assert_close(transported(s.expand(-1, -1, -1, 4), 0.1), s.mean(dim=(-2, -1)))


def test_no_gradient_flows_through_the_plan() -> None:
    """The gradient of Σ T s is T: minus that of the entropic cost, which the plan minimises. It is not the true one."""
    s = draw(3, 5, 3)
    tensor = torch.from_numpy(s)[None, None].requires_grad_()
    (found,) = torch.autograd.grad(transported(tensor, 0.1).sum(), tensor)
    np.testing.assert_allclose(found[0, 0], reference_plan(s, 0.1), atol=1e-5)

    def differences(function: Any) -> Any:
        step = 1e-5
        gradient = np.zeros_like(s)
        for place in np.ndindex(*s.shape):
            moved = np.zeros_like(s)
            moved[place] = step
            gradient[place] = (function(s + moved) - function(s - moved)) / (2 * step)
        return gradient

    np.testing.assert_allclose(found[0, 0], -differences(lambda x: entropic_cost(x, 0.1)), atol=2e-5)
    true = differences(lambda x: np.sum(reference_plan(x, 0.1) * x))
    assert np.abs(true - found[0, 0].numpy()).max() > 1e-2


def test_every_problem_stops_by_itself() -> None:
    """A hard problem beside an easy one changes nothing for it, to the last bit."""
    easy, hard = torch.from_numpy(draw(1, 1, 6, 4, spread=0.01)), torch.from_numpy(draw(2, 1, 6, 4, spread=1.0))
    alone = transport_plan(easy, 0.05)
    together = transport_plan(torch.cat([easy, hard]), 0.05)
    assert torch.equal(together[:1], alone)
    assert torch.equal(together[1:], transport_plan(hard, 0.05))


def test_many_images_are_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    s = torch.from_numpy(draw(1, 7, 3, 6, 4))
    whole = transported(s, 0.1)
    monkeypatch.setattr(plot, "ENTRIES_AT_ONCE", 2 * 3 * 6 * 4)
    assert torch.equal(transported(s, 0.1), whole)
    assert transported(s[:0], 0.1).shape == (0, 3)


def test_nothing_underflows() -> None:
    """At ε = 0.002 the kernel exp(−2/ε) is 0 in single precision; in half precision ε = 0.1 is enough for that."""
    s = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.5, -1.0]])
    plan = transport_plan(s, 0.002)
    assert torch.isfinite(plan).all()
    torch.testing.assert_close(plan.sum(dim=0), torch.tensor([0.5, 0.5]))
    assert transport_plan(s.half(), 0.1).dtype == torch.float32


def test_a_hundred_steps_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem that has not settled is given up with its columns exact."""
    s = torch.from_numpy(draw(5, 8, 4, spread=1.0))
    far = transport_plan(s, 0.005)
    monkeypatch.setattr(plot, "MAX_STEPS", 5000)
    assert (transport_plan(s, 0.005) - far).abs().max() > 1e-6
    torch.testing.assert_close(far.sum(dim=0), torch.full((4,), 0.25, dtype=torch.float64))
