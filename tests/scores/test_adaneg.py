"""AdaNeg's memory against a plain one in float64 that holds every place of every label, and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltaenergy.errors import InputError
from deltaenergy.scores.adaneg import AdaNeg, Proxies, entropies
from deltaenergy.scores.adaptive import ADAPTERS, confident, make_adapter
from tests.scores.reference import Floats
from tests.scores.test_neglabel import grouped_softmax


def units(rng: np.random.Generator, count: int, d: int) -> Floats:
    rows = rng.normal(size=(count, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Plain:
    """The paper's memory as an array (labels, places, D), filled image by image with NumPy."""

    def __init__(self, settings: AdaNeg, texts: Floats, negatives: Floats) -> None:
        self.s, self.k = settings, len(texts)
        self.texts = np.concatenate([texts, negatives])
        self.places = np.zeros((len(self.texts), settings.length, texts.shape[1]))
        self.places[:, 0] = self.texts
        self.entropy = np.full((len(self.texts), settings.length), -np.inf)
        self.filled = np.ones(len(self.texts), int)

    def score(self, cosines: Floats) -> Floats:
        groups = min(self.s.groups, cosines.shape[1] - self.k)
        return grouped_softmax(cosines[:, : self.k], cosines[:, self.k :], groups, self.s.temperature)

    def judge(self, z: Floats) -> Floats:
        cosines = z @ self.texts.T
        static = self.score(cosines)
        for i in range(len(z)):
            if static[i] > self.s.threshold + self.s.gap * (1 - self.s.threshold):
                part, first = cosines[i, : self.k], 0
            elif static[i] < self.s.threshold * (1 - self.s.gap):
                part, first = cosines[i, self.k :], self.k
            else:
                continue
            p = np.exp(part / self.s.temperature - (part / self.s.temperature).max())
            p /= p.sum()
            entropy = -sum(q * np.log(q) for q in p if q > 0)
            label = first + int(part.argmax())
            if self.filled[label] < self.s.length:
                place = self.filled[label]
                self.filled[label] += 1
            else:
                place = int(self.entropy[label].argmax())
                if entropy >= self.entropy[label, place]:
                    continue
            self.places[label, place], self.entropy[label, place] = z[i], entropy
        adapted = np.zeros_like(cosines)
        for i in range(len(z)):
            for label in range(len(self.texts)):
                held = self.places[label]
                weights = np.ones(len(held))
                if self.s.proxies == "sample":
                    weights = np.exp(-self.s.sharpness * (1 - held @ z[i]))
                proxy = (weights[:, None] * held).sum(axis=0)
                adapted[i, label] = z[i] @ proxy / np.linalg.norm(proxy)
        return self.score(adapted) + self.s.weight * static


def stream(rng: np.random.Generator, texts: Floats, negatives: Floats, count: int) -> Floats:
    """Images near a few labels, so that their memories fill and overflow."""
    labels = np.concatenate([texts[:2], negatives[:2]])[rng.integers(0, 4, count)]
    z = labels + rng.uniform(0.2, 1.2, (count, 1)) * units(rng, count, texts.shape[1])
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@pytest.mark.parametrize("proxies", ["task", "sample"])
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_by_the_plain_memory(proxies: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts, negatives = units(rng, 4, 12), units(rng, 11, 12)
    settings = AdaNeg(length=4, groups=3, temperature=0.1, proxies=proxies)  # type: ignore[arg-type]
    memory = Proxies(settings, torch.from_numpy(texts), torch.from_numpy(negatives))
    plain = Plain(settings, texts, negatives)
    z = stream(rng, texts, negatives, 60)
    for start in range(0, 60, 7):
        part = torch.from_numpy(z[start : start + 7])
        found = memory.judge(part @ torch.from_numpy(texts).T, part)
        np.testing.assert_allclose(found.numpy(), plain.judge(z[start : start + 7]), rtol=1e-9, atol=1e-12)
    assert max(map(len, memory.cached.values())) == 3 and len(memory.cached) >= 3  # memories did fill
    assert (plain.filled == 4).sum() >= 2


def test_a_fresh_memory_gives_neglabel_alone() -> None:
    """Nothing is sure of an image between all labels: proxies are the texts, and the score 1.1 times neglabel."""
    rng = np.random.default_rng(0)
    texts, negatives = units(rng, 3, 8), units(rng, 5, 8)
    settings = AdaNeg(temperature=10.0, groups=1)
    memory = Proxies(settings, torch.from_numpy(texts), torch.from_numpy(negatives))
    z = units(rng, 6, 8)
    expected = grouped_softmax(z @ texts.T, z @ negatives.T, 1, 10.0)
    found = memory.judge(torch.from_numpy(z @ texts.T), torch.from_numpy(z))
    np.testing.assert_allclose(found.numpy(), 1.1 * expected, rtol=1e-12)
    assert not memory.cached


def test_who_is_sure_by_hand() -> None:
    known, unknown = confident(torch.tensor([0.75, 0.7501, 0.5, 0.25, 0.2499]), 0.5, 0.5)
    assert known.tolist() == [False, True, False, False, False]
    assert unknown.tolist() == [False, False, False, False, True]


def test_a_lower_entropy_replaces_the_highest_alone() -> None:
    memory = Proxies(AdaNeg(length=3), torch.eye(2), torch.eye(2))
    one, two, three, four = torch.eye(4)[:, :2]
    for entropy, feature in ((0.5, one), (0.9, two), (0.9, three), (0.7, four)):
        memory._store(1, entropy, feature)
    assert [entropy for entropy, _ in memory.cached[1]] == [0.5, 0.7]
    memory._store(1, 0.1, one)
    assert [entropy for entropy, _ in memory.cached[1]] == [0.5, 0.1]


def test_entropies_by_hand() -> None:
    found = entropies(torch.tensor([[0.3, 0.3], [1.0, -1.0]], dtype=torch.float64), 0.01)
    np.testing.assert_allclose(found.numpy(), [np.log(2), 0], atol=1e-12)


def test_the_released_settings() -> None:
    params = make_adapter("adaneg").params
    expected = {"length": 10, "threshold": 0.5, "gap": 0.5, "weight": 0.1, "groups": 5, "sharpness": 5.5, "batch": 256}
    assert {name: params[name] for name in expected} == expected
    assert make_adapter(make_adapter("adaneg(batch=1,proxies=sample)").spec) == AdaNeg(batch=1, proxies="sample")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adanag", r"'adanag'.*'adaneg'"),
        ("adaneg(length=1)", "length"),
        ("adaneg(gap=2)", "gap"),
        ("adaneg(proxies=text)", "proxies"),
        ("adaneg+tanl", r"adapter 'adaneg\+tanl'"),
        ("adaneg(batch=0)", "batch"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_adapter(spec)


def test_adapters_are_no_scores() -> None:
    from deltaenergy import list_scores

    assert ADAPTERS.names() == ["adaneg", "tanl"]
    assert not set(ADAPTERS) & set(list_scores())
