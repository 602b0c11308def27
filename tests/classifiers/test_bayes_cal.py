"""bayes-cal: each term against float64 NumPy, autograd and torch's distributions; what is sampled and served."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import TrainBatch
from deltaenergy.classifiers.bayes_cal import (
    BayesCal,
    BayesCalClassifier,
    descent_direction,
    gaussian_divergence,
    irm_penalty,
    released_divergence,
    squared_cosine,
)
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.tuning.tune import fit
from deltaenergy.tuning.views import CachedViews, Domains
from tests.labelled_pictures import CLASSES, write_pictures

SCALE = 100.0
OFF = {"domain_weight": 0, "irm_weight": 0, "cosine_weight": 0, "kl_weight": 0}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return nn.functional.normalize(random(*shape, seed=seed), dim=-1)


@pytest.fixture(scope="module")
def images(train_set: Any) -> CachedViews:
    """One view of twelve images of three domains."""
    found = train_set.images
    domains = Domains(torch.arange(12) % 3, ("art painting", "photo", "sketch"))
    return CachedViews(found.features[:, :1], found.labels, domains=domains)


def built(model: Model, images: CachedViews, **settings: Any) -> BayesCalClassifier:
    made = BayesCal(**settings).build(model, CLASSES, images, torch.Generator().manual_seed(3))
    assert isinstance(made, BayesCalClassifier)
    return made


def in_training(model: Model, images: CachedViews, **settings: Any) -> tuple[BayesCalClassifier, TrainBatch]:
    classifier = built(model, images, **settings).train()
    classifier.generator = torch.Generator().manual_seed(5)
    return classifier, images.batch(torch.arange(12), 0, torch.Generator())


class TestDivergence:
    @given(st.integers(0, 10_000), st.floats(1e-3, 5))
    def test_is_the_library_s(self, seed: int, prior_sigma: float) -> None:
        mean, prior, log_sigma = random(4, 3, seed=seed), random(4, 3, seed=seed + 1), random(4, 3, seed=seed + 2)
        expected = kl_divergence(Normal(mean, log_sigma.exp()), Normal(prior, torch.full_like(prior, prior_sigma)))
        found = gaussian_divergence(mean, log_sigma, prior, prior_sigma)
        torch.testing.assert_close(found, expected.sum(), rtol=1e-10, atol=1e-10)

    def test_is_zero_only_where_both_are_equal(self) -> None:
        mean, log_sigma = random(4, 3), torch.full((4, 3), math.log(0.3), dtype=torch.float64)
        assert gaussian_divergence(mean, log_sigma, mean, 0.3).abs() < 1e-12
        assert gaussian_divergence(mean + 0.01, log_sigma, mean, 0.3) > 1e-4
        for shift in (-0.1, 0.1):
            assert gaussian_divergence(mean, log_sigma + shift, mean, 0.3) > 1e-2

    def test_pulls_a_vanishing_sigma_by_one_per_entry(self) -> None:
        log_sigma = torch.full((2, 3), math.log(1e-9), dtype=torch.float64, requires_grad=True)
        mean = random(2, 3)
        (gradient,) = torch.autograd.grad(gaussian_divergence(mean, log_sigma, mean, 0.02), log_sigma)
        torch.testing.assert_close(gradient, -torch.ones_like(gradient), atol=1e-12, rtol=0)

    def test_pulls_the_mean_as_stated(self) -> None:
        """β/σ0² = 1e-8/0.02² = 2.5e-5 per unit; the released form, 1e-8 · 2/1e-3 = 2e-5 at σ0 = 1e-5."""
        mean = torch.ones(1, dtype=torch.float64, requires_grad=True)
        log_sigma, prior = torch.full((1,), math.log(1e-5), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        (ours,) = torch.autograd.grad(1e-8 * gaussian_divergence(mean, log_sigma, prior, 0.02), mean)
        (theirs,) = torch.autograd.grad(1e-8 * released_divergence(mean, log_sigma, prior, 1e-5), mean)
        assert ours.item() == pytest.approx(2.5e-5, rel=1e-9)
        assert theirs.item() == pytest.approx(2e-5, rel=1e-9)

    def test_released_form_against_numpy(self) -> None:
        mean, prior, log_sigma = random(3, 2), random(3, 2, seed=1), 0.3 * random(3, 2, seed=2)
        s1, s2 = 0.7**2, np.exp(log_sigma.numpy()) ** 2
        moved = (mean - prior).numpy()
        expected = (np.log(s1 / s2 + 1e-3) + (s2**2 + moved**2) / (2 * s1**2 + 1e-3)).sum()
        assert expected > 0
        assert released_divergence(mean, log_sigma, prior, 0.7).item() == pytest.approx(expected, rel=1e-12)
        # σ0 = 1e-5, σ = 1e-3: every entry is log(1e-4 + 1e-3) + 1e-9 < 0, and the sum is clamped.
        assert released_divergence(mean, torch.full_like(mean, math.log(1e-3)), mean, 1e-5).item() == 0


class TestIrm:
    @given(st.integers(0, 10_000), st.integers(1, 4))
    def test_is_the_squared_derivative_by_a_factor_on_the_logits(self, seed: int, count: int) -> None:
        logits, labels = 3 * random(12, 5, seed=seed), torch.arange(12) % 5
        domains = torch.arange(12) % count
        expected = 0.0
        for domain in range(count):
            factor = torch.ones((), dtype=torch.float64, requires_grad=True)
            chosen = domains == domain
            loss = nn.functional.cross_entropy(factor * logits[chosen], labels[chosen])
            expected += torch.autograd.grad(loss, factor)[0].item() ** 2
        assert irm_penalty(logits, labels, domains).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)

    def test_a_constant_on_an_image_s_logits_changes_nothing(self) -> None:
        logits, labels, domains = random(6, 4), torch.arange(6) % 4, torch.arange(6) % 2
        shifted = logits + 10 * random(6, 1, seed=1)
        torch.testing.assert_close(
            irm_penalty(shifted, labels, domains), irm_penalty(logits, labels, domains), rtol=1e-9, atol=1e-12
        )

    def test_vanishes_at_the_best_scale(self) -> None:
        """Some images are wrong, so cross-entropy has a least value in between; found by bisection of its slope."""
        logits, labels, one = random(9, 3, seed=4), torch.arange(9) % 3, torch.zeros(9, dtype=torch.long)
        logits = logits + 1.5 * nn.functional.one_hot(labels, 3)

        def slope(factor: float) -> float:
            a = (factor * logits).numpy()
            p = np.exp(a - a.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            return float(((p * logits.numpy()).sum(axis=1) - logits.numpy()[np.arange(9), labels]).mean())

        low, high = 0.0, 50.0
        assert slope(low) < 0 < slope(high)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        assert irm_penalty(low * logits, labels, one).item() < 1e-20
        assert irm_penalty(2 * low * logits, labels, one).item() > 1e-4


class TestDescent:
    def reference(self, f: torch.Tensor, texts: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Autograd's gradient of each image's cross-entropy by its feature before normalisation, with a graph."""
        loss = nn.functional.cross_entropy(SCALE * nn.functional.normalize(f, dim=1) @ texts.T, labels, reduction="sum")
        return torch.autograd.grad(loss, f, create_graph=True)[0]

    @given(st.integers(0, 10_000), st.floats(0.1, 20))
    def test_is_autograd_s_direction(self, seed: int, length: float) -> None:
        f = (length * unit(5, 8, seed=seed)).requires_grad_()
        texts, labels = unit(4, 8, seed=seed + 1), torch.arange(5) % 4
        z = nn.functional.normalize(f, dim=1).detach()
        expected = self.reference(f, texts, labels).detach()
        found = descent_direction(z, texts, SCALE * z @ texts.T, labels)
        # An image that is all but certain leaves autograd no digits to compare.
        known = expected.norm(dim=1) * length > 1e-6
        cosines = nn.functional.cosine_similarity(found, expected, dim=1)
        torch.testing.assert_close(cosines[known], torch.ones(int(known.sum()), dtype=torch.float64), atol=1e-8, rtol=0)

    def test_a_certain_image_has_a_direction_too(self) -> None:
        """z = t_0, cosines (1, 0, −1) at L = 100: 1 − p_0 is e^−100, nothing beside 1, but the direction is t_1's."""
        texts = torch.eye(3)[:2]
        texts = torch.cat([texts, -texts[:1]])
        z = torch.eye(3)[:1]
        found = descent_direction(z, texts, SCALE * z @ texts.T, torch.tensor([0]))
        torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0]]))

    def test_the_cosine_s_gradient_is_autograd_s_and_not_zero(self) -> None:
        """∂/∂t^c and ∂/∂t^d of Σ cos², once through the closed form and once by differentiating autograd's gradient."""
        z, labels, domains = unit(6, 8, seed=2), torch.arange(6) % 3, torch.arange(6) % 2
        f = z.clone().requires_grad_()
        mine = [unit(3, 8, seed=3).requires_grad_(), unit(2, 8, seed=4).requires_grad_()]
        theirs = [t.detach().clone().requires_grad_() for t in mine]
        # A low scale, so that no image is certain and autograd's own gradients have digits.
        scale = 5.0
        closed = [
            descent_direction(z, texts, scale * z @ texts.T, labels if i == 0 else domains)
            for i, texts in enumerate(mine)
        ]
        value = squared_cosine(closed[0], closed[1]).sum()
        value.backward()
        grads = []
        for texts, target in zip(theirs, (labels, domains)):
            logits = scale * nn.functional.normalize(f, dim=1) @ texts.T
            loss = nn.functional.cross_entropy(logits, target)
            grads.append(torch.autograd.grad(loss, f, create_graph=True)[0])
        dot = (grads[0] * grads[1]).sum(dim=1)
        expected = (dot**2 / (grads[0].norm(dim=1) * grads[1].norm(dim=1)) ** 2).sum()
        expected.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-9)
        for a, b in zip(mine, theirs):
            assert a.grad is not None and b.grad is not None and b.grad.abs().max() > 1e-3
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-7, atol=1e-9)

    def test_one_domain_has_no_direction(self) -> None:
        z, texts = unit(3, 4), unit(1, 4, seed=1).requires_grad_()
        none = descent_direction(z, texts, SCALE * z @ texts.T, torch.zeros(3, dtype=torch.long))
        assert none.abs().max() == 0
        assert squared_cosine(unit(3, 4, seed=2), none).abs().max() == 0


class TestLoss:
    @pytest.mark.parametrize("as_released", [False, True])
    def test_five_terms_against_numpy(self, tiny_clip: Model, images: CachedViews, as_released: bool) -> None:
        """The whole loss of a step, from the texts of the contexts that were sampled, in float64."""
        weights = {"domain_weight": 0.3, "irm_weight": 0.7, "cosine_weight": 0.2, "kl_weight": 1e-3}
        classifier, batch = in_training(
            tiny_clip, images, sigma=0.05, prior_sigma=0.1, context_length=4, as_released=as_released, **weights
        )
        # Away from where they began, so that no difference is 0.
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for parameter in classifier.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        found = classifier.losses(classifier(batch), batch)

        draws = torch.Generator().manual_seed(5)
        assert classifier.domain_prompts is not None
        texts, kl = [], 0.0
        pairs = (
            (classifier.context, classifier.log_sigma, classifier.prior_mean, classifier.prompts),
            (
                classifier.domain_context,
                classifier.domain_log_sigma,
                classifier.domain_prior_mean,
                classifier.domain_prompts,
            ),
        )
        for mean, log_sigma, prior, prompts in pairs:
            sigma = log_sigma.detach().exp()
            noise = torch.randn(mean.shape, generator=draws)
            v = mean.detach() + (sigma**2 if as_released else sigma) * noise
            texts.append(prompts(v).double().numpy())
            m, s, m0 = (t.detach().double().numpy() for t in (mean, sigma, prior))
            if as_released:
                s0 = 0.05
                terms = np.log(s0**2 / s**2 + 1e-3) + (s**4 + (m - m0) ** 2) / (2 * s0**4 + 1e-3)
                kl += max(0.0, terms.sum())
            else:
                kl += (np.log(0.1 / s) + (s**2 + (m - m0) ** 2) / (2 * 0.1**2) - 0.5).sum()
        z = batch.features.double().numpy()  # type: ignore[union-attr]
        y, e = batch.labels.numpy(), batch.domains.numpy()  # type: ignore[union-attr]
        rows = np.arange(len(z))
        ce, directions, excess = [], [], None
        for t, target in zip(texts, (y, e)):
            a = tiny_clip.logit_scale * z @ t.T
            log_p = a - a.max(axis=1, keepdims=True)
            log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
            ce.append(-log_p[rows, target].mean())
            excess = (np.exp(log_p) * a).sum(axis=1) - a[rows, target] if excess is None else excess
            g = (np.exp(log_p) - np.eye(len(t))[target]) @ t
            directions.append(g - (g * z).sum(axis=1, keepdims=True) * z)
        assert excess is not None
        norms = [np.linalg.norm(g, axis=1) for g in directions]
        assert min(n.min() for n in norms) > 1e-12
        cosines = (directions[0] * directions[1]).sum(axis=1) / norms[0] / norms[1]
        expected = {
            "ce": ce[0],
            "domain": 0.3 * ce[1],
            "irm": 0.7 * sum(excess[e == domain].mean() ** 2 for domain in range(3)),
            "cos²": 0.2 * (cosines**2).sum(),
            "kl": 1e-3 * kl,
        }
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value, rel=2e-4), name
            assert abs(value) > 1e-6, name

    def test_every_term_moves_its_parameters(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_training(tiny_clip, images, sigma=0.05)
        losses = classifier.losses(classifier(batch), batch)
        for name in ("domain", "cos²", "kl"):
            (gradient,) = torch.autograd.grad(losses[name], classifier.domain_log_sigma, retain_graph=True)
            assert gradient.abs().max() > 0, name
        for name in ("ce", "irm", "cos²"):
            (gradient,) = torch.autograd.grad(losses[name], classifier.context, retain_graph=True)
            assert gradient.abs().max() > 0, name

    def test_the_released_cosine_term_teaches_nothing(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_training(tiny_clip, images, as_released=True)
        losses = classifier.losses(classifier(batch), batch)
        assert losses["cos²"] > 0 and not losses["cos²"].requires_grad

    def test_one_domain_works_and_says_so(self, tiny_clip: Model, images: CachedViews) -> None:
        alone = CachedViews(images.features, images.labels)
        with pytest.warns(UserWarning, match=r"bayes-cal.*'train'.*`domains"):
            classifier, batch = in_training(tiny_clip, alone)
        losses = classifier.losses(classifier(batch), batch)
        assert losses["domain"].item() == 0 and losses["cos²"].item() == 0
        torch.stack(list(losses.values())).sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in classifier.parameters())

    def test_without_noise_and_weights_it_is_coop(self, tiny_clip: Model, images: CachedViews) -> None:
        trained = []
        for method in (BayesCal(sigma=1e-30, **OFF), CoOp()):
            classifier = method.build(tiny_clip, CLASSES, images, torch.Generator().manual_seed(3))
            fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 4, "batch_size": 64})
            trained.append(classifier.state_dict())
        begun = built(tiny_clip, images).state_dict()["context"]
        assert (trained[1]["context"] - begun).abs().max() > 1e-4
        torch.testing.assert_close(trained[0]["context"], trained[1]["context"], atol=2e-6, rtol=0)
        torch.testing.assert_close(trained[0]["text_features"], trained[1]["text_features"], atol=2e-5, rtol=0)


class TestUse:
    def test_sigma_decides_the_noise(self, tiny_clip: Model, images: CachedViews) -> None:
        for released, expected in ((False, 0.1), (True, 0.01)):
            classifier, _ = in_training(tiny_clip, images, sigma=0.1, context_length=60, as_released=released)
            noise = classifier.sampled(classifier.context, classifier.log_sigma) - classifier.context
            assert noise.std().item() == pytest.approx(expected, rel=0.1)

    def test_trains_on_samples_and_serves_the_mean(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_training(tiny_clip, images, sigma=0.1)
        one, two = classifier(batch).similarities, classifier(batch).similarities
        assert (one - two).abs().max() > 1e-3
        classifier.eval()
        expected = classifier.prompts(classifier.context).detach()
        torch.testing.assert_close(classifier.text_features, expected, atol=0, rtol=0)
        assert torch.equal(classifier(batch).similarities, classifier(batch).similarities)

    def test_noise_comes_from_the_training_s_generator_alone(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_training(tiny_clip, images, sigma=0.1)
        before = torch.get_rng_state()
        classifier.losses(classifier(batch), batch)
        assert torch.equal(before, torch.get_rng_state())
        classifier.generator = None
        with pytest.raises(ValueError, match="training's generator"):
            classifier(batch)

    def test_the_prior_stays_where_the_mean_began(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        begun = classifier.context.detach().clone()
        fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 3})
        assert torch.equal(classifier.prior_mean, begun)
        assert (classifier.context - begun).abs().max() > 1e-5
        assert not torch.equal(classifier.prior_mean, classifier.domain_prior_mean)

    def test_domains_are_those_of_the_training_images(self, tiny_clip: Model, tmp_path: Path) -> None:
        for domain in ("art_painting", "photo"):
            write_pictures(tmp_path / domain, per_class=2)
        found = de.tune(tiny_clip, CLASSES, tmp_path, "bayes-cal", domains=True, shots=2, views=1, recipe={"epochs": 1})
        assert isinstance(found, BayesCalClassifier) and found.domain_prompts is not None
        context = found.domain_context.detach()
        from deltaenergy.models.towers.prompts import LearnedPrompts

        expected = LearnedPrompts(tiny_clip.text, ["art painting", "photo"], 16)(context)  # type: ignore[arg-type]
        torch.testing.assert_close(found.domain_prompts(context), expected)

    def test_other_classes_take_the_same_context(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        other = classifier.with_classes(["zebra", "cat"])
        torch.testing.assert_close(other.text_features[1], classifier.text_features[0], atol=1e-6, rtol=0)

    def test_on_the_bundled_model(self) -> None:
        lite = de.load_model("lite")
        features = nn.functional.normalize(torch.randn(6, 1, lite.feature_dim, generator=torch.Generator()), dim=-1)
        images = CachedViews(features, torch.arange(6) % 2, domains=Domains(torch.arange(6) // 3, ("photo", "sketch")))
        classifier = BayesCal().build(lite, ["dog", "cat"], images, torch.Generator().manual_seed(0))
        trained = fit(classifier, images, generator=torch.Generator().manual_seed(0), recipe={"epochs": 8})
        assert trained.epochs[-1].loss < trained.epochs[0].loss


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bayes-cal(sigma=0)", "sigma must be"),
        ("bayes-cal(prior_sigma=-1)", "prior_sigma must be"),
        ("bayes-cal(irm_weight=-0.1)", "irm_weight must be"),
        ("bayes-cal(class_specific=True)", "class_specific must be"),
        ("bayes_cal", "Did you mean 'bayes-cal'"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)
