"""Scores of the class probabilities or logits alone: msp, mcm, max-logit, energy, entropy.

s are cosines (N, K), p = softmax(s / T). Each is a pure function, with a thin `Score` below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, check_positive
from deltaenergy.scores.registry import register_score


@array_function
def msp(similarities: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
    """Maximum softmax probability, max_k p_k (Hendrycks & Gimpel, ICLR 2017)."""
    return _largest_probability(similarities, temperature)


@array_function
def mcm(similarities: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Maximum concept matching: msp on raw cosines, T = 1 (Ming et al., NeurIPS 2022)."""
    return _largest_probability(similarities, temperature)


@array_function
def max_logit(similarities: torch.Tensor) -> torch.Tensor:
    """The largest similarity, max_k s_k (Hendrycks et al., ICML 2022)."""
    return similarities.amax(dim=1)


@array_function
def energy(similarities: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
    """Negative free energy, T · log Σ_k exp(s_k / T) (Liu et al., NeurIPS 2020)."""
    return temperature * torch.logsumexp(similarities / temperature, dim=1)


@array_function
def entropy(similarities: torch.Tensor, temperature: float = 0.01) -> torch.Tensor:
    """Negative entropy of the class probabilities, Σ_k p_k log p_k."""
    log_p = torch.log_softmax(similarities / temperature, dim=1)
    return (log_p.exp() * log_p).sum(dim=1)


def _largest_probability(similarities: torch.Tensor, temperature: float) -> torch.Tensor:
    """max_k softmax(s/T)_k = 1 / Σ_k exp((s_k − max s)/T)."""
    top = similarities.amax(dim=1, keepdim=True)
    return 1 / (similarities - top).div_(temperature).exp_().sum(dim=1)


@dataclass(frozen=True)
class _Tempered(Score):
    """A score with one hyper-parameter: the temperature."""

    temperature: float = 0.01

    def check(self) -> None:
        """The temperature must be positive."""
        check_positive(self.name, temperature=self.temperature)


@register_score
@dataclass(frozen=True)
class MSP(_Tempered):
    """`msp` as a Score."""

    name = "msp"
    summary = "maximum softmax probability"
    formula = "max_k softmax(s/T)_k"
    paper = "Hendrycks & Gimpel, ICLR 2017"

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        return torch.as_tensor(msp(inputs.similarities, self.temperature))


@register_score
@dataclass(frozen=True)
class MCM(_Tempered):
    """`mcm` as a Score."""

    name = "mcm"
    summary = "maximum concept matching: softmax of raw cosines"
    formula = "max_k softmax(s/T)_k with T = 1"
    paper = "Ming et al., NeurIPS 2022"
    temperature: float = 1.0

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        return torch.as_tensor(mcm(inputs.similarities, self.temperature))


@register_score
@dataclass(frozen=True)
class MaxLogit(Score):
    """`max_logit` as a Score."""

    name = "max-logit"
    summary = "the largest similarity"
    formula = "max_k s_k"
    paper = "Hendrycks et al., ICML 2022"

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        return torch.as_tensor(max_logit(inputs.similarities))


@register_score
@dataclass(frozen=True)
class Energy(_Tempered):
    """`energy` as a Score."""

    name = "energy"
    summary = "negative free energy of the similarities"
    formula = "T · lse(s/T)"
    paper = "Liu et al., NeurIPS 2020"

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        return torch.as_tensor(energy(inputs.similarities, self.temperature))


@register_score
@dataclass(frozen=True)
class Entropy(_Tempered):
    """`entropy` as a Score."""

    name = "entropy"
    summary = "negative entropy of the class probabilities"
    formula = "−H(softmax(s/T))"
    paper = "Hendrycks & Gimpel, ICLR 2017 (as a baseline since)"

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        return torch.as_tensor(entropy(inputs.similarities, self.temperature))
