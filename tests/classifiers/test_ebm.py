"""EBM's loss and masks against hand-worked cases, NumPy in float64, and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.ebm import Ebm, energy_change, keep_mask
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError


def outputs(features: torch.Tensor, texts: torch.Tensor) -> Outputs:
    if texts.ndim == 3:
        return Outputs(torch.einsum("bd,bkd->bk", features, texts), features, texts)
    return Outputs(features @ texts.T, features, texts)


def batch(found: Outputs) -> TrainBatch:
    return TrainBatch(found.features, labels=torch.zeros(len(found.features), dtype=torch.long))


def test_two_dimensions_by_hand() -> None:
    """z = (0.6, 0.8), t_1 = (1, 0), t_2 = (0, 1): class 2 is predicted, z ⊙ h1 = (0, 0.8), p = ½ keeps entry 2.

    Masked, z becomes (0, 0.8): s = (0.6, 0.8), s' = (0, 0.8). With τ' = 1, E2 − E0 = log(e^.6 + e^.8) − log(1 + e^.8).
    """
    z = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    found = outputs(z, torch.eye(2, dtype=torch.float64))
    assert keep_mask(found, 0.5).tolist() == [[0.0, 1.0]]
    expected = math.log(math.exp(0.6) + math.exp(0.8)) - math.log(1 + math.exp(0.8))
    assert energy_change(found, 0.5, 1.0).item() == pytest.approx(expected, abs=1e-12)
    term, logged = Ebm(weight=2.0, p=0.5, loss_tau=1.0)(found, batch(found))
    assert term.item() == pytest.approx(2 * math.exp(expected), abs=1e-12)
    assert logged["e^L"] == pytest.approx(math.exp(expected), abs=1e-12)


def test_negative_products_go_first() -> None:
    """The mask keeps the largest products, not the largest entries: a large entry that speaks against h1 goes."""
    z = torch.tensor([[0.5, -0.7, 0.5, 0.1]], dtype=torch.float64)
    texts = torch.tensor([[0.6, 0.4, 0.6, 0.346], [-0.9, 0.1, -0.3, 0.3]], dtype=torch.float64)
    assert keep_mask(outputs(z, texts), 0.5).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert keep_mask(outputs(z, texts), 0.51).tolist() == [[1.0, 0.0, 1.0, 1.0]]
    assert keep_mask(outputs(z, texts), 1.0).tolist() == [[1.0, 1.0, 1.0, 1.0]]


def test_keeping_everything_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(5, 12, generator=generator), dim=1)
    t = torch.nn.functional.normalize(torch.randn(4, 12, generator=generator), dim=1)
    assert energy_change(outputs(z, t), 1.0, 0.1).abs().max() < 1e-6


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_against_numpy(per_image: bool, tau: float) -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(size=(6, 20))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    t = rng.normal(size=(6, 5, 20) if per_image else (5, 20))
    t /= np.linalg.norm(t, axis=-1, keepdims=True)
    changes = []
    for i in range(6):
        texts = t[i] if per_image else t
        h = texts[np.argmax(texts @ z[i])]
        kept = np.argsort(-(z[i] * h))[: math.ceil(0.35 * 20)]
        masked = np.zeros(20)
        masked[kept] = z[i][kept]
        e0, e2 = (-np.log(np.exp(texts @ v / tau).sum()) for v in (z[i], masked))
        changes.append(e2 - e0)
    found = outputs(torch.from_numpy(z), torch.from_numpy(t))
    term, _ = Ebm(weight=0.5, p=0.35, loss_tau=tau)(found, batch(found))
    assert term.item() == pytest.approx(0.5 * math.exp(np.mean(changes)), rel=1e-10)


def test_gradient_against_finite_differences_and_none_through_the_mask() -> None:
    generator = torch.Generator().manual_seed(3)
    z = torch.nn.functional.normalize(torch.randn(4, 8, generator=generator, dtype=torch.float64), dim=1)
    t = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)

    def loss(texts: torch.Tensor) -> torch.Tensor:
        found = outputs(z, torch.nn.functional.normalize(texts, dim=1))
        return Ebm(p=0.5, loss_tau=0.3)(found, batch(found))[0]

    assert torch.autograd.gradcheck(loss, (t,), eps=1e-7, atol=1e-6)
    assert not keep_mask(outputs(z, t), 0.5).requires_grad


def test_a_vanished_term_is_told() -> None:
    term = Ebm(loss_tau=0.01)
    message = term.warning({"e^L": 2e-5})
    assert message is not None and "vanished" in message and "2.0e-05" in message and "loss_tau" in message
    assert term.warning({"e^L": 0.7}) is None


def test_composes_with_prompt_learners_only() -> None:
    assert make_method("ebm").spec == "coop+ebm"
    assert make_method("ebm(p=0.4,weight=2)").spec == "coop+ebm(weight=2,p=0.4)"
    assert make_method(" cocoop + ebm ( p = 0.4 ) ").spec == "cocoop+ebm(p=0.4)"
    assert make_method(make_method("ebm").spec) == make_method("ebm")
    takers = "bayes-cal, clap, cocoop, coop, dplclip, locoop, maple, promptsrc, task-res"
    with pytest.raises(InputError, match=rf"cosines .*: {takers}"):
        make_method("tip-adapter-f+ebm")
    with pytest.raises(InputError, match=r"'coop' is a separate method"):
        make_method("cocoop+coop")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("emb", r"'emb'.*'ebm'"),
        ("ebm(q=0.5)", r"'q'.*loss_tau, p, weight"),
        ("ebm(p=0)", "ebm: p must be .*got 0"),
        ("ebm(p=1.5)", "p must be"),
        ("ebm(weight=-1)", r"weight must be"),
        ("ebm(p)", r"'p' is not of the form"),
        ("ebm(p=half)", r"p must be.*'half'"),
        ("ebm((", r"a \) is missing"),
        ("coop(context_length=0)", "context_length"),
        ("coop(name_position=behind)", r"name_position.*'behind'"),
        ("cocoop(class_specific=True)", r"class_specific must be"),
        ("clip-adapter(alpha=2)", "alpha"),
        ("tip-adapter(beta=-1)", r"beta must be"),
    ],
)
def test_wrong_specifications_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)
