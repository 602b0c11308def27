"""delta-energy+words against its formula in float64, and the words that it takes by default."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Model, PrecomputedClassifier, ZeroShotClassifier, make_score
from deltaenergy.errors import InputError
from deltaenergy.scores import delta_energy_words
from deltaenergy.scores.base import ScoreInputs, Scorer
from tests.scores.reference import Floats, delta_energy, log_sum_exp

WORDS = 30


def unit(rows: int, seed: int, size: int = 16) -> Floats:
    features = np.random.default_rng(seed).normal(size=(rows, size))
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def inputs(z: Floats, t: Floats) -> ScoreInputs:
    return ScoreInputs(torch.from_numpy(z @ t.T), torch.from_numpy(z))


def fitted(t: Floats, words: Floats, known: Floats, spec: str = "delta-energy+words") -> Scorer:
    classifier = PrecomputedClassifier(t.astype(np.float32), [f"class {k}" for k in range(len(t))])
    return make_score(spec).bind(classifier, state={"negatives": torch.from_numpy(words)}).fit(inputs(known, t))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 9), seed=st.integers(0, 2**20), weight=st.sampled_from([0.5, 1.0]))
def test_formula(n: int, k: int, seed: int, weight: float) -> None:
    t, words, known, new = unit(k, seed), unit(WORDS, seed + 1), unit(40, seed + 2), unit(n, seed + 3)

    def terms(z: Floats) -> tuple[Floats, Floats]:
        return delta_energy(z @ t.T, 0.1, 1), log_sum_exp(z @ t.T / 0.01) - log_sum_exp(z @ words.T / 0.01)

    (contrast, odds), (contrasts, all_odds) = terms(new), terms(known)
    expected = (contrast - contrasts.mean()) / contrasts.std()
    expected += weight * (odds - all_odds.mean()) / all_odds.std()
    values = fitted(t, words, known, f"delta-energy+words(weight={weight})")(inputs(new, t)).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)


def test_function_of_similarities() -> None:
    z, t, words = unit(7, 0), unit(4, 1), unit(WORDS, 2)
    s, negatives = z @ t.T, z @ words.T
    odds = log_sum_exp(s / 0.02) - log_sum_exp(negatives / 0.02)
    expected = (delta_energy(s, 0.2, 2) - 0.5) / 2 + 3 * (odds + 1) / 4
    found = delta_energy_words(s, negatives, [0.5, -1.0], [2.0, 4.0], tau=0.2, c=2, temperature=0.02, weight=3)
    np.testing.assert_allclose(found, expected)


def test_many_images_and_words_give_the_same_in_blocks() -> None:
    t, words, known = unit(5, 0), unit(3000, 1), unit(300, 2)
    scorer = fitted(t, words, known)
    whole = scorer(inputs(known, t))
    one_by_one = torch.cat([scorer(inputs(known[i : i + 1], t)) for i in range(300)])
    torch.testing.assert_close(whole, one_by_one, rtol=0, atol=1e-9)


def test_half_of_a_thousand_frequent_nouns(tiny_clip: Model) -> None:
    score = make_score("delta-energy+words")
    assert score.prompts == 1000
    scorer = score.bind(ZeroShotClassifier(tiny_clip, ["dog", "cat"]))
    assert scorer.state["negatives"].shape == (500, tiny_clip.feature_dim) and not scorer.fitted


def test_a_model_without_texts_is_refused() -> None:
    classifier = PrecomputedClassifier(unit(4, 0).astype(np.float32), list("abcd"))
    with pytest.raises(InputError, match="text tower"):
        make_score("delta-energy+words").bind(classifier)
