"""Bayes-CAL: contexts as Gaussians, and class prompts independent of domains (Zhu et al., AAAI 2023).

    v = μ + σ⊙ε,   ε ~ N(0, 1) once per step,   the same for domain prompts t^d with the domains' names
    CE_class + α1 CE_domain + α2 IRM + α3 Σ_i cos²(g^c_i, g^d_i) + β (KL_class + KL_domain)

    IRM  = Σ_e (mean_{i∈e} [Σ_k p_ik a_ik − a_iy])²,   a = L z·t: the squared derivative of domain e's mean
           cross-entropy by a factor on its logits
    g_i  = (1 − z zᵀ) Tᵀ (p_i − onehot_i): the direction in which an image feature would lower its cross-entropy
    KL   = Σ [log(σ0/σ) + (σ² + (μ − μ0)²)/(2σ0²) − ½],   μ0 the initial μ

It is served with the mean, v = μ: a coop classifier. The released code (`as_released`) adds σ²⊙ε, has another KL with
σ0 = σ at the start, and builds the cos² term without a graph, so it has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.methods import TrainViews, register_method, warn_of_one_domain
from deltaenergy.classifiers.prompt import PromptClassifier, PromptMethod, initial_context
from deltaenergy.classifiers.randomness import normal_like
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import NonNegative, Positive
from deltaenergy.models.base import Model
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import Phase, Stage


class BayesCalClassifier(PromptClassifier):
    """Cosines with the texts of the mean context; while it is trained, of a sampled one."""

    method: BayesCal
    prior_mean: torch.Tensor
    domain_prior_mean: torch.Tensor

    def __init__(self, model: Model, classes: Sequence[str], method: BayesCal) -> None:
        super().__init__(model, classes, method)
        zeros = torch.zeros(self.context.shape)
        self.log_sigma, self.domain_log_sigma = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        self.domain_context = nn.Parameter(zeros.clone())
        # The initial means matter only for training.
        self.register_buffer("prior_mean", zeros.clone(), persistent=False)
        self.register_buffer("domain_prior_mean", zeros.clone(), persistent=False)
        self.domain_prompts: LearnedPrompts | None = None
        self.to(model.device)

    def initialise(self, data: TrainViews, generator: torch.Generator) -> None:
        """Two Gaussians, and the prompts of the training domains."""
        warn_of_one_domain(
            self.method.name, data, "there are no domains to separate, so it trains only on class prompts"
        )
        super().initialise(data, generator)
        shape = tuple(self.domain_context.shape)
        self.domain_context.data.copy_(initial_context(self.tower, shape, self.method.context_init, generator))
        for log_sigma in (self.log_sigma, self.domain_log_sigma):
            log_sigma.data.fill_(math.log(self.method.sigma))
        self.prior_mean.copy_(self.context.data)
        self.domain_prior_mean.copy_(self.domain_context.data)
        self.domain_prompts = LearnedPrompts(
            self.tower, data.domain_names, self.prompts.context_length, name_position=self.method.name_position
        )

    def texts(self) -> torch.Tensor:
        """The text features of a sampled context in training, else of the mean."""
        return self.prompts(self.sampled(self.context, self.log_sigma) if self.training else self.context)

    def sampled(self, mean: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
        """A context of the Gaussian, for all classes of this step."""
        scale = torch.exp(2 * log_sigma if self.method.as_released else log_sigma)
        return mean + scale * normal_like(mean, self.generator)

    def losses(self, outputs: Outputs, batch: TrainBatch) -> dict[str, torch.Tensor]:
        assert self.domain_prompts is not None  # made by `initialise`
        method, z, domains = self.method, outputs.features, batch.need(Need.DOMAINS)
        domain_texts = self.domain_prompts(self.sampled(self.domain_context, self.domain_log_sigma))
        logits, domain_logits = (self.model.logit_scale * z @ texts.T for texts in (outputs.texts, domain_texts))
        towards = descent_direction(z, outputs.texts, logits, batch.labels)
        aligned = squared_cosine(towards, descent_direction(z, domain_texts, domain_logits, domains)).sum()
        return {
            **super().losses(outputs, batch),
            "domain": method.domain_weight * nn.functional.cross_entropy(domain_logits, domains),
            "irm": method.irm_weight * irm_penalty(logits, batch.labels, domains),
            "cos²": method.cosine_weight * (aligned.detach() if method.as_released else aligned),
            "kl": method.kl_weight
            * (
                self.divergence(self.context, self.log_sigma, self.prior_mean)
                + self.divergence(self.domain_context, self.domain_log_sigma, self.domain_prior_mean)
            ),
        }

    def divergence(self, mean: torch.Tensor, log_sigma: torch.Tensor, prior_mean: torch.Tensor) -> torch.Tensor:
        """KL of a Gaussian from its prior."""
        if self.method.as_released:
            return released_divergence(mean, log_sigma, prior_mean, self.method.sigma)
        return gaussian_divergence(mean, log_sigma, prior_mean, self.method.prior_sigma)


@register_method
@dataclass(frozen=True)
class BayesCal(PromptMethod):
    """α1, α2, α3 and β are `domain_weight`, `irm_weight`, `cosine_weight` and `kl_weight`; `sigma` is the initial σ,
    `prior_sigma` σ0. The paper's σ0 = 1e-5 with β = 1 would make a valley too narrow for SGD.
    """

    name = "bayes-cal"
    summary = "a Gaussian context, kept separate from the look of the domains"
    formula = "CE + α1 CE_domain + α2 IRM + α3 Σcos²(∇CE, ∇CE_domain) + β KL, v = μ + σε"
    paper = "Zhu et al., AAAI 2023"
    classifier = BayesCalClassifier
    needs_to_train = frozenset({Need.FEATURES, Need.DOMAINS})
    class_specific: Literal[False] = False  # the context is shared by all classes
    domain_weight: NonNegative = 0.01
    irm_weight: NonNegative = 0.5
    cosine_weight: NonNegative = 0.01
    kl_weight: NonNegative = 1e-8
    sigma: Positive = 1e-5
    prior_sigma: Positive = 0.02
    as_released: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One stage; weight decay acts only on means, because it would pull log σ to 0, that is σ to 1."""
        return (Stage((Phase(undecayed=("log_sigma", "domain_log_sigma")),)),)


def irm_penalty(logits: torch.Tensor, labels: torch.Tensor, domains: torch.Tensor) -> torch.Tensor:
    """Σ_e (mean_{i∈e} [Σ_k p_ik a_ik − a_iy])² over the domains of a batch, a (B, K)."""
    excess = (logits.softmax(dim=1) * logits).sum(dim=1) - logits.gather(1, labels[:, None])[:, 0]
    return torch.stack([excess[domains == domain].mean() ** 2 for domain in torch.unique(domains)]).sum()


def descent_direction(
    features: torch.Tensor, texts: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """The direction (B, D) of each image's cross-entropy gradient by its feature before normalisation; 0 if K = 1.

    g = (1 − z zᵀ) Σ_{k≠y} q_k (t_k − t_y), with q the softmax over all classes but y. It is Tᵀ(p − onehot) divided by
    1 − p_y, which may be too small to keep any digit of the difference.
    """
    if len(texts) == 1:
        return torch.zeros_like(features)
    others = logits.scatter(1, labels[:, None], -torch.inf).softmax(dim=1)
    pull = others @ texts - texts[labels]
    return pull - (pull * features).sum(dim=1, keepdim=True) * features


def squared_cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """cos² of the angle between rows (B, D) -> (B,); 0 where one of them is 0."""
    return nn.functional.cosine_similarity(a, b, dim=1) ** 2


def gaussian_divergence(
    mean: torch.Tensor, log_sigma: torch.Tensor, prior_mean: torch.Tensor, prior_sigma: float
) -> torch.Tensor:
    """KL(N(μ, σ²) ‖ N(μ0, σ0²)), summed over the entries."""
    ratio = log_sigma - math.log(prior_sigma)
    moved = (mean - prior_mean) / prior_sigma
    return (((2 * ratio).exp() + moved**2 - 1) / 2 - ratio).sum()


def released_divergence(
    mean: torch.Tensor, log_sigma: torch.Tensor, prior_mean: torch.Tensor, prior_sigma: float
) -> torch.Tensor:
    """Σ[log(σ0²/σ² + 1e-3) + (σ⁴ + (μ − μ0)²)/(2σ0⁴ + 1e-3)], at least 0: the KL of the released code."""
    variance, prior = (2 * log_sigma).exp(), prior_sigma**2
    terms = torch.log(prior / variance + 1e-3) + (variance**2 + (mean - prior_mean) ** 2) / (2 * prior**2 + 1e-3)
    return terms.sum().clamp(min=0)
