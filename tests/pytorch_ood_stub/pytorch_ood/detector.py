"""Detectors with the constructors and methods of pytorch-ood 0.4, each by the formula of its paper."""

from __future__ import annotations

from typing import Any

import torch

from pytorch_ood.api import FeaturesDetector, LogitsDetector, RequiresFittingException


class KNN(FeaturesDetector):
    def __init__(self, encoder: Any, k: int = 1) -> None:
        self.encoder, self.k, self.known = encoder, k, None

    def predict(self, x: Any) -> Any:
        return self.predict_features(self.encoder(x))

    def fit_features(self, z: Any, y: Any) -> Any:
        self.known = z[y >= 0]
        return self

    def predict_features(self, z: Any) -> Any:
        if self.known is None:
            raise RequiresFittingException
        return torch.stack([(row - self.known).norm(dim=1).sort().values[self.k - 1] for row in z])


class Mahalanobis(FeaturesDetector):
    def __init__(self, encoder: Any, eps: float = 1e-6) -> None:
        self.encoder, self.eps, self.mu = encoder, eps, None

    def predict(self, x: Any) -> Any:
        return self.predict_features(self.encoder(x))

    def fit_features(self, z: Any, y: Any) -> Any:
        count = int(y.max()) + 1
        assert len(y.unique()) == count, "labels count on from 0 without a gap"
        self.mu = torch.stack([z[y == k].mean(dim=0) for k in range(count)])
        rest = z - self.mu[y]
        self.precision = torch.linalg.pinv(rest.T @ rest + self.eps * torch.eye(z.shape[1]))
        return self

    def distances(self, z: Any) -> Any:
        apart = z[:, None] - self.mu[None]
        return torch.einsum("nkd,de,nke->nk", apart, self.precision, apart)

    def predict_features(self, z: Any) -> Any:
        if self.mu is None:
            raise RequiresFittingException
        return 0.5 * self.distances(z).min(dim=1).values


class RMD(Mahalanobis):
    def fit_features(self, z: Any, y: Any) -> Any:
        super().fit_features(z, y)
        self.centre = z.mean(dim=0)
        rest = z - self.centre
        self.background = torch.linalg.pinv(rest.T @ rest + 1e-6 * torch.eye(z.shape[1]))
        return self

    def predict_features(self, z: Any) -> Any:
        apart = z - self.centre
        return self.distances(z).min(dim=1).values - ((apart @ self.background) * apart).sum(dim=1)


class ViM(FeaturesDetector):
    def __init__(self, encoder: Any, d: int, w: Any, b: Any) -> None:
        self.encoder, self.d, self.w, self.b = encoder, d, w, b

    def predict(self, x: Any) -> Any:
        return self.predict_features(self.encoder(x))

    def fit_features(self, z: Any, y: Any) -> Any:
        self.rest = torch.linalg.eigh(z.T @ z / len(z)).eigenvectors[:, : z.shape[1] - self.d]
        logits = z @ self.w.T + self.b
        self.alpha = logits.max(dim=1).values.mean() / (z @ self.rest).norm(dim=1).mean()
        return self

    def predict_features(self, z: Any) -> Any:
        return self.alpha * (z @ self.rest).norm(dim=1) - (z @ self.w.T + self.b).logsumexp(dim=1)


class GEN(LogitsDetector):
    def __init__(self, model: Any, gamma: float = 0.1) -> None:
        self.model, self.gamma = model, gamma

    def predict_logits(self, logits: Any) -> Any:
        p = logits.softmax(dim=1).clamp(1e-7, 1 - 1e-7)
        return (p**self.gamma * (1 - p) ** self.gamma).mean(dim=1)


class KLMatching(LogitsDetector):
    def __init__(self, model: Any) -> None:
        self.model, self.typical = model, {}

    def fit_logits(self, logits: Any, y: Any) -> Any:
        p = logits.softmax(dim=1)
        self.typical = {int(k): p[y == k].mean(dim=0) for k in y.unique()}
        return self

    def predict_logits(self, logits: Any) -> Any:
        p = logits.softmax(dim=1).clamp(min=1e-12)
        apart = [(p * (p / d.clamp(min=1e-12)).log()).sum(dim=1) for d in self.typical.values()]
        return torch.stack(apart).min(dim=0).values
