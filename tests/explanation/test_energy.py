"""ΔEnergy by class: against the formula in float64 NumPy, and against the score itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation.energy import energy_figure, energy_parts, energy_settings
from deltaenergy.scores.registry import make_score
from tests.report.checks import Page

NAMES = [f"class {k}" for k in range(40)]


def by_the_formula(row: np.ndarray, tau: float, c: int, reset: float) -> tuple[float, float, list[float]]:
    """E0, E1 and the c energies, each from its own sum over all classes."""
    row = row.astype(np.float64)

    def energy(similarities: np.ndarray) -> float:
        logits = similarities / tau
        return -float(logits.max() + np.log(np.exp(logits - logits.max()).sum()))

    single = []
    for k in np.argsort(-row, kind="stable")[:c]:
        changed = row.copy()
        changed[k] = reset
        single.append(energy(changed))
    return energy(row), float(np.mean(single)), single


settings_of_score = st.tuples(st.sampled_from([0.01, 0.05, 0.1, 1.0]), st.integers(1, 6), st.sampled_from([0.0, 0.2]))
cosines = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.floats(-0.5, 1, width=32))


@given(cosines, settings_of_score)
def test_shares_add_up_to_the_score(similarities: np.ndarray, chosen: tuple[float, int, float]) -> None:
    tau, c, reset = chosen
    scores = de.scores.delta_energy(similarities.astype(np.float64), tau, c, reset)
    found = energy_parts(similarities, NAMES[: similarities.shape[1]], tau, c, reset)
    for row, score, parts in zip(similarities, scores, found):
        e0, e1, single = by_the_formula(row, tau, min(c, len(row)), reset)
        assert sum(one.share for one in parts.classes) == pytest.approx(score, abs=1e-6)
        assert parts.delta == pytest.approx(score, abs=1e-6)
        assert (parts.e0, parts.e1) == pytest.approx((e0, e1), rel=1e-9, abs=1e-9)
        assert [one.energy for one in parts.classes] == pytest.approx(single, rel=1e-9, abs=1e-9)
        assert [one.share for one in parts.classes] == pytest.approx(
            [(energy - e0) / len(single) for energy in single], abs=1e-7
        )


def test_parts_worked_by_hand() -> None:
    """Two classes at τ = 1: s = (ln 3, 0), each reset to 0 in turn."""
    (parts,) = energy_parts(np.log([[3.0, 1.0]]), ["dog", "cat"], tau=1.0, c=2)
    assert parts.e0 == pytest.approx(-np.log(4))
    assert [one.name for one in parts.classes] == ["dog", "cat"]
    assert [one.probability for one in parts.classes] == pytest.approx([0.75, 0.25])
    # Without the dog, e^0 + e^0 = 2; the cat stands at 0 already.
    assert [one.energy for one in parts.classes] == pytest.approx([-np.log(2), -np.log(4)])
    assert [one.share for one in parts.classes] == pytest.approx([np.log(2) / 2, 0.0], abs=1e-12)
    assert parts.delta == pytest.approx(np.log(2) / 2)


def test_of_equal_classes_the_first_comes_first() -> None:
    (parts,) = energy_parts([[0.1, 0.3, 0.3]], ["a", "b", "c"], c=3)
    assert [one.name for one in parts.classes] == ["b", "c", "a"]


def test_settings_are_those_of_the_score(tiny_clip: de.Model) -> None:
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"])
    features = np.eye(3, classifier.model.feature_dim, dtype=np.float32)

    def of(spec: str) -> tuple[float, int, float]:
        detector = de.Detector(classifier, spec).calibrate(features, confidence=None)
        return energy_settings(detector.scorer)

    assert of("delta-energy(tau=0.3,c=1,reset=0.1)") == (0.3, 1, 0.1)
    assert of("multi-delta-energy") == (0.01, 2, 0.0)
    assert of("mcm") == (0.01, 2, 0.0)
    similarities = classifier.similarities(features).astype(np.float64)
    rest = np.sort(similarities, axis=1)[:, :-1]
    assert of("delta-energy:robust") == (0.05, 1, pytest.approx(rest.mean(), abs=1e-6))
    assert make_score("delta-energy:robust").needs_fit


def test_wrong_input_is_told() -> None:
    with pytest.raises(InputError, match="3 columns for 2 classes"):
        energy_parts(np.zeros((1, 3)), ["a", "b"])
    with pytest.raises(InputError, match="tau"):
        energy_parts(np.zeros((1, 2)), ["a", "b"], tau=0)
    with pytest.raises(InputError, match="NaN"):
        energy_parts(np.full((1, 2), np.nan), ["a", "b"])


def test_the_chart_says_in_words_what_it_shows() -> None:
    (parts,) = energy_parts(np.linspace(0.3, 0.1, 12)[None], ["<dog>", *NAMES[:11]], tau=0.1, c=12)
    page = Page(energy_figure(parts))
    (chart,) = page.all("svg")
    assert "E0 = " in (chart["aria-label"] or "") and "<dog>" in (chart["aria-label"] or "")
    # Five classes and one row for the other seven.
    assert len(page.all("rect")) == 6
    assert "7 others" in page.text and "E1" in page.text
