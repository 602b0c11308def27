"""delta-energy+words against its formula in float64, and the words that compete with the classes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, Model, PrecomputedClassifier, ZeroShotClassifier, make_score
from deltaenergy.data.catalogue.class_names import name_list
from deltaenergy.errors import InputError
from deltaenergy.scores import delta_energy_words
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.negatives.competing import candidates, competing_words, imagenet_meanings, remove_own
from deltaenergy.scores.negatives.taxonomy import taxonomy
from tests.scores.reference import Floats, log_sum_exp

WORDS = 30


def unit(rows: int, seed: int, size: int = 16) -> Floats:
    features = np.random.default_rng(seed).normal(size=(rows, size))
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def reference(s: Floats, w: Floats, tau: float, temperature: float, weight: float) -> Floats:
    """Image by image, name by name."""
    scores = []
    for classes, words in zip(s, w, strict=True):
        best = int(np.argmax(classes))
        others = [*np.delete(classes, best), *words]
        contrast = classes[best] / tau - np.log(np.mean(np.exp(np.array(others) / tau)))
        odds = log_sum_exp(classes[None] / temperature)[0] - log_sum_exp(words[None] / temperature)[0]
        scores.append(odds + weight * contrast)
    return np.array(scores)


def bound(t: Floats, words: Floats, spec: str = "delta-energy+words") -> Scorer:
    classifier = PrecomputedClassifier(t.astype(np.float32), [f"class {k}" for k in range(len(t))])
    return make_score(spec).bind(classifier, state={"negatives": torch.from_numpy(words)})


def inputs(z: Floats, t: Floats) -> ScoreInputs:
    return ScoreInputs(torch.from_numpy(z @ t.T), torch.from_numpy(z))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    k=st.integers(1, 9),
    tau=st.sampled_from([0.05, 0.1, 0.3]),
    temperature=st.sampled_from([0.01, 0.05]),
    weight=st.sampled_from([0.0, 4.0, 8.0]),
    seed=st.integers(0, 2**20),
)
def test_formula(n: int, k: int, tau: float, temperature: float, weight: float, seed: int) -> None:
    z, t, words = unit(n, seed), unit(k, seed + 1), unit(WORDS, seed + 2)
    expected = reference(z @ t.T, z @ words.T, tau, temperature, weight)
    found = delta_energy_words(z @ t.T, z @ words.T, tau, temperature, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    spec = f"delta-energy+words(tau={tau},temperature={temperature},weight={weight})"
    np.testing.assert_allclose(bound(t, words, spec)(inputs(z, t)).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_one_class_by_hand() -> None:
    # One class at 0.3; words at 0.2 and 0.1. odds = 30 − log(e²⁰ + e¹⁰); C = 3 − log((e² + e¹) / 2).
    odds = 30 - (20 + np.log1p(np.exp(-10)))
    contrast = 3 - np.log((np.exp(2) + np.exp(1)) / 2)
    found = delta_energy_words(np.array([[0.3]]), np.array([[0.2, 0.1]]))
    assert found[0] == pytest.approx(odds + 8 * contrast, rel=1e-12)


def test_the_other_classes_count_as_names_too() -> None:
    # Two classes at 0.3 and 0.2, one word at 0.1: the mean is over 0.2 and 0.1.
    contrast = 3 - np.log((np.exp(2) + np.exp(1)) / 2)
    found = delta_energy_words(np.array([[0.2, 0.3]]), np.array([[0.1]]), weight=1)
    assert found[0] == pytest.approx(np.logaddexp(20, 30) - 10 + contrast, rel=1e-12)


def test_shift_scale_and_repetition() -> None:
    s, w = unit(5, 0) @ unit(4, 1).T, unit(5, 0) @ unit(WORDS, 2).T
    plain = delta_energy_words(s, w)
    # All cosines higher by the same: no name stands out more.
    np.testing.assert_allclose(delta_energy_words(s + 0.1, w + 0.1), plain, atol=1e-9)
    # Cosines and temperatures in other units.
    np.testing.assert_allclose(delta_energy_words(3 * s, 3 * w, tau=0.3, temperature=0.03), plain, atol=1e-9)
    # Words twice: log 2 less in the odds, and for one class the mean is the same.
    one = s[:, :1]
    twice = delta_energy_words(one, np.concatenate([w, w], axis=1))
    np.testing.assert_allclose(twice, delta_energy_words(one, w) - np.log(2), atol=1e-9)
    # A better word lowers the score, a better best class lifts it.
    assert (delta_energy_words(s, w + 0.05) < plain).all()
    lifted = s.copy()
    lifted[np.arange(5), s.argmax(axis=1)] += 0.05
    assert (delta_energy_words(lifted, w) > plain).all()


def test_the_temperature_is_the_models_own_unless_given() -> None:
    t, words, z = unit(3, 0), unit(WORDS, 1), unit(4, 2)
    scorer = bound(t, words)
    assert scorer.classifier.model.logit_scale == 100
    np.testing.assert_allclose(scorer(inputs(z, t)), reference(z @ t.T, z @ words.T, 0.1, 0.01, 8.0), rtol=1e-6)


def test_many_images_and_words_give_the_same_in_blocks() -> None:
    t, words, known = unit(5, 0), unit(3000, 1), unit(300, 2)
    scorer = bound(t, words)
    whole = scorer(inputs(known, t))
    one_by_one = torch.cat([scorer(inputs(known[i : i + 1], t)) for i in range(300)])
    torch.testing.assert_close(whole, one_by_one, rtol=0, atol=1e-9)


# --- words ------------------------------------------------------------------------------------------------------------


def test_meanings_of_imagenets_names_are_wordnets() -> None:
    names, table, rows = name_list("imagenet"), taxonomy(), imagenet_meanings()
    parents: dict[int, list[str]] = {}
    for above, kinds in enumerate(table.kinds):
        for kind in kinds:
            parents.setdefault(kind, []).append(", ".join(table.words[above]))
    in_order = [rows[name.name] for name in names.classes]
    for name, own in zip(names.classes, in_order, strict=True):
        assert name.superclass is not None and any(name.superclass.lower() in parents[row] for row in own), name
    # Keys are offsets in WordNet's file, so rows rise with them.
    single = [own[0] for own in in_order if len(own) == 1]
    assert single == sorted(set(single)) and len(single) == 996


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("dog", 118, "Leonberger"),  # the breeds of ILSVRC
        ("people", 52, "scuba diver"),  # three, and clothes
        ("crane", 2, "construction crane"),
        ("crane bird", 1, "crane bird"),
        ("T-shirts", 1, "T-shirt"),
        ("carousel horse", 0, None),
    ],
)
def test_how_many_of_imagenets_names_mean_a_class(name: str, count: int, some: str | None) -> None:
    removed = remove_own(imagenet_meanings(), [name])
    assert len(removed) == count and (some is None or name in removed[some])


def test_a_class_list_is_never_among_its_own_words() -> None:
    names = candidates()
    assert set(remove_own(names, [name.title() for name in names])) == set(names)


def test_the_words_that_compete(tiny_clip: Model, tmp_path: Path) -> None:
    score = make_score("delta-energy+words")
    assert score.prompts == 1100 and not score.needs_fit
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat"], template="an image of a {}")
    detector = Detector(classifier, score)
    words = detector.words
    assert {"Beagle", "tabby cat"} <= words.removed.keys() and "dog" in words.removed["Beagle"]
    assert "pizza" in words.kept and len(words.kept) + len(words.removed) == 1100
    assert not set(words.kept) & words.removed.keys()
    expected = tiny_clip.encode_texts([f"an image of a {word}" for word in words.kept])
    np.testing.assert_allclose(detector.scorer.state["negatives"], expected, atol=1e-5)
    features = unit(30, 0, tiny_clip.feature_dim).astype(np.float32)
    detector.calibrate(features, keep=0.9).save(tmp_path / "detector")
    assert Detector.load(tmp_path / "detector", model=tiny_clip).words == words
    with pytest.raises(InputError, match="mcm"):
        _ = Detector(classifier, "mcm").words


def test_words_in_several_templates_are_averaged_as_classes_are(tiny_clip: Model) -> None:
    templates = ("a photo of a {}.", "a sketch of a {}.")
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat"], templates=templates)
    with pytest.warns(UserWarning, match="words are left"):
        words, features = competing_words(classifier, "pizza,beach,car")
    expected = ZeroShotClassifier(tiny_clip, words.kept, templates=templates).text_features
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def test_a_users_words_replace_or_extend_the_pool(tiny_clip: Model, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("pizza\nselfie\n", encoding="utf-8")
    assert candidates(str(path)) == candidates("pizza, selfie") == ("pizza", "selfie")
    assert candidates(f"+{path}") == (*candidates(), "selfie")
    score = make_score("delta-energy+words", words=f"+{path}")
    assert make_score(score.spec) == score and score.prompts == 1101
    with pytest.raises(InputError, match=r"words: .*missing\.txt"):
        candidates("missing.txt")
    classifier = ZeroShotClassifier(tiny_clip, ["dog"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "selfie" in competing_words(classifier, f"+{path}")[0].kept
    with pytest.raises(InputError, match="words"):
        competing_words(classifier, "poodle,Dogs")


def test_a_model_without_texts_is_refused() -> None:
    classifier = PrecomputedClassifier(unit(4, 0).astype(np.float32), list("abcd"))
    with pytest.raises(InputError, match="text encoder"):
        make_score("delta-energy+words").bind(classifier)
