"""neglabel and csp against the literal grouped softmax, and ΔEnergy over negatives against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy import Detector, Model, PrecomputedClassifier, ZeroShotClassifier, make_score
from deltaenergy.data.catalogue.class_names import name_list
from deltaenergy.errors import InputError
from deltaenergy.scores import neglabel
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scores.neglabel import MinedScore
from tests.scores.reference import Floats, delta_energy, log_sum_exp


def grouped_softmax(s: Floats, negatives: Floats, groups: int, temperature: float) -> Floats:
    """NegLabel as its paper writes it: for each group the softmax over classes and group, summed over the classes."""
    size = negatives.shape[1] // groups
    scores = []
    for g in range(groups):
        logits = np.concatenate([s, negatives[:, g * size : (g + 1) * size]], axis=1) / temperature
        log_p = logits - log_sum_exp(logits)[:, None]
        scores.append(np.exp(log_p[:, : s.shape[1]]).sum(axis=1))
    return np.mean(scores, axis=0)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 8),
    k=st.integers(1, 20),
    m=st.integers(1, 60),
    groups=st.integers(1, 10),
    temperature=st.sampled_from([0.01, 0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_closed_form_equals_the_grouped_softmax(
    n: int, k: int, m: int, groups: int, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    s, negatives = rng.uniform(-0.3, 0.4, (n, k)), rng.uniform(-0.3, 0.4, (n, m))
    expected = grouped_softmax(s, negatives, min(groups, m), temperature)
    np.testing.assert_allclose(neglabel(s, negatives, groups, temperature), expected, rtol=1e-9, atol=1e-12)


def test_log_odds_are_the_mean_over_groups_before_the_sigmoid() -> None:
    rng = np.random.default_rng(4)
    s, negatives = rng.uniform(-0.3, 0.4, (5, 6)), rng.uniform(-0.3, 0.4, (5, 21))
    groups = [log_sum_exp(negatives[:, 7 * g : 7 * g + 7] / 0.05) for g in range(3)]
    expected = np.mean([log_sum_exp(s / 0.05) - group for group in groups], axis=0)
    np.testing.assert_allclose(neglabel(s, negatives, 3, 0.05, log_odds=True), expected)


def test_quick_keeps_half_of_imagenets_names_and_does_not_round_to_one() -> None:
    score = make_score("neglabel:quick")
    assert score.prompts == 998 and score.spec == "neglabel:quick"
    z, t, negatives = state_and_inputs(12, 5, 40, 8, seed=1)
    s = 3 * z @ t.T
    expected = log_sum_exp(s / 0.01) - log_sum_exp(z @ negatives.T / 0.01)
    inputs = ScoreInputs(torch.from_numpy(s).float(), torch.from_numpy(z).float())
    values = bound("neglabel:quick", t, torch.from_numpy(negatives))(inputs).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)
    assert np.ptp(values[values > 30]) > 1  # shares would all be 1


def test_no_class_is_its_own_negative(tiny_clip: Model) -> None:
    # From 21 classes on the 0.95 quantile passes over the largest cosine, which is the one with the word itself.
    names = [name for name in name_list("imagenet").names if name.islower()][::20]
    score = make_score("neglabel:quick")
    assert len(names) > 21 and isinstance(score, MinedScore) and set(names) <= set(score.pool.words)
    mined = score.mined(ZeroShotClassifier(tiny_clip, [name.upper() for name in names]), None)
    assert not set(names) & set(mined.words) and len(mined.words) > 400


def test_published_rules_may_keep_kinds_of_the_classes(tiny_clip: Model, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("poodle\nsoup\n", encoding="utf-8")
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    score = make_score("neglabel", words=str(words), keep=1.0)
    assert isinstance(score, MinedScore) and set(score.mined(classifier, None).words) == {"poodle", "soup"}


def test_no_word_is_left(tiny_clip: Model) -> None:
    with pytest.raises(InputError, match="kinds"):
        make_score("neglabel:quick").bind(ZeroShotClassifier(tiny_clip, ["entity"]))


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_extreme_similarities_stay_finite_and_within_one(value: float) -> None:
    s = np.full((2, 3), value)
    negatives = np.full((2, 200), -value)
    for dtype in (np.float32, np.float64):
        scores = neglabel(s.astype(dtype), negatives.astype(dtype))
        expected = grouped_softmax(s, negatives, 100, 0.01)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-30)


def test_equal_masses_give_one_half() -> None:
    # Two classes against groups of two negatives, all equally similar: half the mass is on the classes.
    assert neglabel(np.full((1, 2), 0.25), np.full((1, 8), 0.25), groups=4)[0] == pytest.approx(0.5)


def state_and_inputs(n: int, k: int, m: int, d: int, seed: int) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(count, d)) for count in (n, k, m)]
    z, t, negatives = (row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows)
    return z, t, negatives


def bound(spec: str, texts: Floats, negatives: torch.Tensor, **params: object) -> Scorer:
    """A score with these negatives, for a classifier with these texts."""
    classifier = PrecomputedClassifier(texts, [f"class {k}" for k in range(len(texts))])
    return make_score(spec, **params).bind(classifier, state={"negatives": negatives})


@pytest.mark.parametrize(("m", "groups"), [(7, 100), (256, 100), (5000, 100), (5000, 1), (3001, 7)])
@pytest.mark.parametrize("n", [0, 1, 300])
def test_blocks_give_the_same_as_the_whole(n: int, m: int, groups: int) -> None:
    z, t, negatives = state_and_inputs(n, 9, m, 8, seed=m)
    inputs = ScoreInputs(torch.from_numpy(z @ t.T), torch.from_numpy(z))
    score = bound("neglabel", t, torch.from_numpy(negatives), groups=groups)
    expected = grouped_softmax(z @ t.T, z @ negatives.T, min(groups, m), 0.01) if n else np.zeros(0)
    np.testing.assert_allclose(score(inputs).numpy(), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", ["neglabel+delta-energy", "csp+delta-energy"])
@pytest.mark.parametrize(("tau", "c", "reset"), [(0.01, 2, 0.0), (0.1, 1, 0.3), (1.0, 3, -0.5)])
def test_delta_energy_over_negatives(name: str, tau: float, c: int, reset: float) -> None:
    z, t, negatives = state_and_inputs(40, 9, 1500, 8, seed=c)
    score = bound(name, t, torch.from_numpy(negatives), tau=tau, c=c, reset=reset)
    values = score(ScoreInputs(torch.from_numpy(z @ t.T), torch.from_numpy(z)))
    expected = delta_energy(z @ t.T, tau, c, reset) - delta_energy(z @ negatives.T, tau, c, reset)
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_defaults_are_the_papers() -> None:
    params = make_score("neglabel").params
    assert (params["groups"], params["temperature"], params["keep"], params["quantile"]) == (100, 0.01, 0.15, 0.95)
    params = make_score("csp+delta-energy").params
    assert (params["tau"], params["c"], params["reset"]) == (0.01, 2, 0.0)
    assert "groups" not in params


@pytest.mark.parametrize("groups", [100, 1])
def test_memory_does_not_grow_with_negatives_or_images(classifier: ZeroShotClassifier, groups: int) -> None:
    """The largest tensor that one call makes, watched through every operation."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                Largest.seen = max(Largest.seen, result.numel())
            return result

    d = classifier.model.feature_dim
    z, t, negatives = state_and_inputs(1000, 4, 20_000, d, seed=0)
    score = make_score("neglabel", groups=groups).bind(
        classifier, state={"negatives": torch.from_numpy(negatives).float()}
    )
    with Largest():
        score(ScoreInputs(torch.from_numpy(z @ t.T).float(), torch.from_numpy(z).float()))
    assert 200_000 < Largest.seen <= max(262_144, negatives.size)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"keep": 0.0}, "keep"),
        ({"quantile": 1.5}, "quantile"),
        ({"too_close": 0}, "too_close"),
        ({"groups": 0}, "groups"),
        ({"temperature": -1}, "temperature"),
        ({"noun_templates": "the nice"}, "exactly one"),
        ({"noun_templates": {}}, "must be text"),
        ({"words": 3}, "words"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_score("neglabel", **params)


def test_templates_survive_the_spec() -> None:
    score = make_score("neglabel", noun_templates="{}|the, nice ({})", words="my words/list.txt")
    assert make_score(score.spec).params == score.params


def test_a_missing_word_list_is_named(classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    score = make_score("csp", words=str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match="does not exist"):
        score.bind(classifier)
    # What failed leaves nothing behind: the next try says the same.
    detector = Detector(classifier, score)
    for _ in range(2):
        with pytest.raises(InputError, match="does not exist"):
            detector.prepare()


def test_csp_compares_candidates_with_its_own_class_prompts(
    classifier: ZeroShotClassifier, word_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    original = classifier.model.text.project

    def project(texts: list[str], **options: object) -> torch.Tensor:
        seen.extend(texts)
        return original(texts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(classifier.model.text, "project", project)
    make_score("csp", words=str(word_list)).bind(classifier)
    assert "a close-up photo of the nice dog." in seen
    assert "the good old a" in seen
    assert len(seen) == 8 * (4 + 60)
