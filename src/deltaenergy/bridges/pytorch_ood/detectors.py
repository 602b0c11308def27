"""Our scores as detectors of pytorch-ood, where larger = more unknown.

    ScoreOnLogits(model, "delta-energy").predict(x)                    # outlier scores, −score
    ScoreOnFeatures(encoder, "knn(k=5)").fit(loader).predict(x)

Our scores use similarities, which are logits over the model's logit scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

try:
    from pytorch_ood.api import FeaturesDetector, LogitsDetector, ModelNotSetException, RequiresFittingException
except ImportError as error:
    raise ImportError(
        f"deltaenergy.bridges.pytorch_ood needs pytorch-ood 0.4 or later, with its torchvision: {error}. pip install "
        "'pytorch-ood>=0.4'."
    ) from error

from deltaenergy.classifiers.precomputed import PrecomputedClassifier
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import make_score


class _OfScore:
    """What both have: a score, on rows that they turn into its inputs."""

    def _use(self, score: str | Score, allowed: frozenset[Need], where: str) -> None:
        made = make_score(score)
        if made.missing is not None:
            raise InputError(made.missing)
        beyond = sorted(need.value for need in made.needs - allowed)
        if beyond:
            raise InputError(f"Score {made.spec!r} needs {', '.join(beyond)}, which {where} do not have.")
        self.ood_score, self.requires_fit = made, made.needs_fit
        self._scorer: Scorer | None = None

    def _vectors(self, rows: torch.Tensor) -> torch.Tensor:
        """The class vectors (K, D) of a classifier for the score."""
        raise NotImplementedError

    def _inputs(self, rows: torch.Tensor) -> ScoreInputs:
        raise NotImplementedError

    def _bound(self, rows: torch.Tensor) -> Scorer:
        vectors = self._vectors(rows)
        names = [f"class {k}" for k in range(len(vectors))]
        return self.ood_score.bind(PrecomputedClassifier(vectors, names))

    def _learn(self, rows: torch.Tensor, y: torch.Tensor) -> None:
        known = rows[y >= 0]
        if not len(known):
            raise ValueError("No known image to fit on: all labels are negative.")
        self._scorer = self._bound(known).fit(self._inputs(known))

    def _outlier_scores(self, rows: torch.Tensor) -> torch.Tensor:
        scorer = self._scorer or self._bound(rows)
        if not scorer.fitted:
            raise RequiresFittingException
        with torch.no_grad():
            return -scorer(self._inputs(rows))


class ScoreOnLogits(_OfScore, LogitsDetector):  # type: ignore[misc]
    """A score of similarities, on the logits of any classifier.

    Args:
        model: gives logits; None if only `fit_logits` and `predict_logits` are called.
        score: such as `delta-energy`, optionally with parameters.
        logit_scale: similarities are logits divided by this: 100 for CLIP, whose logits are 100 · cosine.
    """

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor] | None,
        score: str | Score = "delta-energy",
        *,
        logit_scale: float = 100.0,
    ) -> None:
        super().__init__()
        if not 0 < logit_scale < float("inf"):
            raise InputError(f"logit_scale must be a positive number, got {logit_scale!r}.")
        self.model, self.logit_scale = model, logit_scale
        self._use(score, frozenset({Need.ID_DATA}), "logits")

    def fit_logits(self, logits: torch.Tensor, y: torch.Tensor) -> ScoreOnLogits:
        """Learn from the logits of known images; images with a negative label are skipped."""
        self._learn(logits, y)
        return self

    def predict_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Outlier scores (N,), the negative of the score."""
        return self._outlier_scores(logits)

    def _vectors(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.eye(rows.shape[1])

    def _inputs(self, rows: torch.Tensor) -> ScoreInputs:
        return ScoreInputs(rows.detach().float() / self.logit_scale, torch.zeros(len(rows), 1))


class ScoreOnFeatures(_OfScore, FeaturesDetector):  # type: ignore[misc]
    """A score of features, on the features of any encoder; they are divided by their length.

    Args:
        encoder: gives features; None if only `fit_features` and `predict_features` are called.
        score: such as `knn(k=5)` or `mahalanobis`.
        class_vectors: unit class vectors (K, D), such as CLIP's text features, for scores that use similarities.
    """

    def __init__(
        self,
        encoder: Callable[[torch.Tensor], torch.Tensor] | None,
        score: str | Score = "knn",
        *,
        class_vectors: Any = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._use(score, frozenset({Need.FEATURES, Need.ID_DATA}), "features")
        self.class_vectors = None if class_vectors is None else torch.as_tensor(class_vectors).float()

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Outlier scores (N,) of inputs to the encoder."""
        if self.encoder is None:
            raise ModelNotSetException
        with torch.no_grad():
            return self.predict_features(self.encoder(x))

    def fit(self, data_loader: Any) -> ScoreOnFeatures:
        """Learn from a loader of (inputs, labels)."""
        if self.encoder is None:
            raise ModelNotSetException
        with torch.no_grad():
            parts = [(self.encoder(x).cpu(), y) for x, y in data_loader]
        return self.fit_features(torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts]))

    def fit_features(self, z: torch.Tensor, y: torch.Tensor) -> ScoreOnFeatures:
        """Learn from features of known images; images with a negative label are skipped."""
        self._learn(z, y)
        return self

    def predict_features(self, z: torch.Tensor) -> torch.Tensor:
        """Outlier scores (N,), the negative of the score."""
        return self._outlier_scores(z)

    def _vectors(self, rows: torch.Tensor) -> torch.Tensor:
        if self.class_vectors is not None:
            return self.class_vectors
        return torch.eye(1, rows.shape[1])

    def _inputs(self, rows: torch.Tensor) -> ScoreInputs:
        unit = torch.nn.functional.normalize(rows.detach().float().flatten(1), dim=1).cpu()
        return ScoreInputs(unit @ self._vectors(unit).T, unit)
