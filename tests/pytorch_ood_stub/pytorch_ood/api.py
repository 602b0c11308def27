"""The base classes of pytorch-ood 0.4, as its documentation describes them: larger = more unknown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class RequiresFittingException(Exception):
    pass


class ModelNotSetException(ValueError):
    pass


class Detector(ABC):
    requires_fit = False

    def __call__(self, *args: Any) -> Any:
        return self.predict(*args)

    @abstractmethod
    def predict(self, x: Any) -> Any: ...


class LogitsDetector(Detector):
    model: Any = None

    def predict(self, x: Any) -> Any:
        if self.model is None:
            raise ModelNotSetException
        return self.predict_logits(self.model(x))

    def fit(self, data_loader: Any) -> Any:
        import torch

        if self.model is None:
            raise ModelNotSetException
        parts = [(self.model(x), y) for x, y in data_loader]
        return self.fit_logits(torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts]))

    def fit_logits(self, logits: Any, y: Any) -> Any:
        raise NotImplementedError

    def predict_logits(self, logits: Any) -> Any:
        raise NotImplementedError


class FeaturesDetector(Detector):
    def fit_features(self, x: Any, y: Any) -> Any:
        raise NotImplementedError

    def predict_features(self, x: Any) -> Any:
        raise NotImplementedError
