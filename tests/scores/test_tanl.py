"""TANL's queues and score against loops in float64, and cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from deltaenergy import PrecomputedClassifier
from deltaenergy.errors import InputError
from deltaenergy.scores.adaptive import make_adapter
from deltaenergy.scores.tanl import Activations, Tanl, cumulative_score, noise_images, parting
from tests.scores.reference import Floats
from tests.scores.test_adaneg import stream, units


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def averaged_softmax(s: Floats, negatives: Floats, t: float) -> Floats:
    """For m = 1 … M the softmax over the classes and the first m negatives, summed over the classes."""
    k = s.shape[1]
    parts = [
        softmax(np.concatenate([s, negatives[:, :m]], axis=1) / t)[:, :k].sum(axis=1)
        for m in range(1, negatives.shape[1] + 1)
    ]
    return np.mean(parts, axis=0)


def least_variance(scores: list[float]) -> float:
    """One threshold at a time."""
    best, where = math.inf, []
    for i in range(100):
        low, high = [x for x in scores if x < i / 100], [x for x in scores if x >= i / 100]
        within = math.inf
        if low and high:
            within = (len(low) * float(np.var(low)) + len(high) * float(np.var(high))) / len(scores)
        if within < best - 1e-15:
            best, where = within, [i]
        elif abs(within - best) <= 1e-15 or within == best:
            where.append(i)
    return where[len(where) // 2] / 100


class Plain:
    """The paper's two queues as lists."""

    def __init__(self, settings: Tanl, texts: Floats, words: Floats, noise: Floats) -> None:
        self.s, self.texts, self.words = settings, texts, words
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(settings.seed)).tolist()
        probabilities = self.probabilities(texts)
        self.known = [probabilities[i] for i in order][-settings.length :]
        self.unknown = list(self.probabilities(noise))[-settings.length :]
        chosen = self.most(np.mean(self.unknown, axis=0) - np.mean(self.known, axis=0))
        self.scores = [*self.score(texts, chosen), *self.score(noise, chosen)]

    def probabilities(self, z: Floats) -> Floats:
        both = np.concatenate([z @ self.texts.T, z @ self.words.T], axis=1)
        return softmax(both / self.s.temperature)[:, len(self.texts) :]

    def most(self, activation: Floats) -> list[int]:
        return sorted(range(len(activation)), key=lambda i: -activation[i])[: self.s.count]

    def score(self, z: Floats, chosen: list[int]) -> Floats:
        return averaged_softmax(z @ self.texts.T, z @ self.words[chosen].T, self.s.temperature)

    def judge(self, z: Floats) -> Floats:
        known, unknown = np.mean(self.known, axis=0), np.mean(self.unknown, axis=0)
        first = self.score(z, self.most(unknown - known))
        self.scores += list(first)
        theta = least_variance(self.scores)
        probabilities = self.probabilities(z)
        sure = [p for p, s in zip(probabilities, first, strict=True) if s > theta + self.s.gap * (1 - theta)]
        strange = [p for p, s in zip(probabilities, first, strict=True) if s < theta - self.s.gap * theta]
        a = self.s.history
        if sure:
            known = a * known + (1 - a) * np.mean(sure, axis=0)
        if strange:
            unknown = a * unknown + (1 - a) * np.mean(strange, axis=0)
        self.known, self.unknown = (self.known + sure)[-self.s.length :], (self.unknown + strange)[-self.s.length :]
        return self.score(z, self.most(unknown - known))


@pytest.mark.parametrize("history", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_by_the_plain_queues(history: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts, words, noise = units(rng, 4, 12), units(rng, 30, 12), units(rng, 5, 12)
    settings = Tanl(count=8, length=6, temperature=0.1, history=history, gap=0.2)
    memory = Activations(settings, *(torch.from_numpy(rows) for rows in (texts, words, noise)))
    plain = Plain(settings, texts, words, noise)
    z = stream(rng, texts, words, 50)
    for start in range(0, 50, 8):
        part = torch.from_numpy(z[start : start + 8])
        found = memory.judge(part @ torch.from_numpy(texts).T, part)
        np.testing.assert_allclose(found.numpy(), plain.judge(z[start : start + 8]), rtol=1e-9, atol=1e-12)
    assert len(memory.known) == len(memory.unknown) == 6
    np.testing.assert_allclose(memory.known.numpy(), plain.known, rtol=1e-9)


def test_the_score_by_hand() -> None:
    # One class and two negatives, all equally similar: 1/2 with the first, 1/3 with both.
    same = torch.full((1, 3), 0.25, dtype=torch.float64)
    assert cumulative_score(same[:, :1], same[:, 1:]).item() == pytest.approx((1 / 2 + 1 / 3) / 2, rel=1e-12)


def test_an_earlier_word_weighs_more() -> None:
    known, near, far = torch.tensor([[0.3]]), 0.3, 0.1
    first, last = (cumulative_score(known, torch.tensor([words])) for words in ([near, far], [far, near]))
    assert first.item() < last.item()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # Any threshold from 0.21 to 0.80 parts these; the middle of the sixty is the thirty-first.
        ([0.2, 0.2, 0.8, 0.8], 0.51),
        ([0.3, 0.3, 0.3], 0.5),  # nothing to part: all hundred are alike
        ([0.0, 0.0, 0.005, 0.99], 0.5),  # 0.01 … 0.99, ninety-nine of them
    ],
)
def test_the_threshold_by_hand(scores: list[float], expected: float) -> None:
    assert parting(torch.tensor(scores, dtype=torch.float64)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_has_the_least_variance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.beta(2, 8, 40), rng.beta(9, 2, 60)])
    assert parting(torch.from_numpy(scores)) == least_variance(scores.tolist())


def test_noise_is_of_five_kinds_and_fixed_by_the_seed() -> None:
    pictures = noise_images(0)
    assert len(pictures) == 15 and all(p.shape == (224, 224, 3) and p.dtype == np.uint8 for p in pictures)
    assert all(np.array_equal(a, b) for a, b in zip(pictures, noise_images(0), strict=True))
    assert not np.array_equal(pictures[0], noise_images(1)[0])
    assert set(np.unique(pictures[-1])) == {0, 255}
    # Uniform noise has a standard deviation of 255/√12.
    assert np.std(pictures[3]) == pytest.approx(255 / math.sqrt(12), rel=0.02)


def test_settings_and_their_refusals() -> None:
    params = make_adapter("tanl").params
    assert (params["count"], params["length"], params["gap"], params["history"]) == (1000, 300, 0.2, 0.95)
    for bad in ("tanl(history=1.5)", "tanl(count=0)", "tanl(gap=-1)"):
        with pytest.raises(InputError):
            make_adapter(bad)


def test_a_model_without_towers_is_refused() -> None:
    classifier = PrecomputedClassifier(np.eye(3, dtype=np.float32), ["a", "b", "c"])
    with pytest.raises(InputError, match="tanl encodes images"):
        make_adapter("tanl").prepare(classifier, None)
