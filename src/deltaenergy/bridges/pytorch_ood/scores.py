"""Detectors of pytorch-ood as a score: `pytorch-ood(detector=RMD)`, calibrated, saved and compared as any other.

    score = −(its outlier score)

Saved are features or logits of the known images (at most `MAX_KEPT`, evenly spaced) and their predicted classes. Its
detector is fitted to them again on first use: no object of another package is written to a file. Logits are
similarities times the model's logit scale.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import check_finite
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.knn import MAX_KEPT, evenly
from deltaenergy.scores.registry import register_score

ON_FEATURES = ("KNN", "Mahalanobis", "RMD", "ViM")
WITHOUT_FIT = ("GEN",)
# Share of the features' dimensions in ViM's principal space.
VIM_SHARE = 0.5

_fitted: weakref.WeakKeyDictionary[Scorer, Any] = weakref.WeakKeyDictionary()
_fitting = threading.Lock()


@register_score
@dataclass(frozen=True)
class PytorchOod(Score):
    """`detector` is the name of a class in `pytorch_ood.detector`."""

    name = "pytorch-ood"
    summary = "a detector of the package pytorch-ood"
    formula = "−(its outlier score)"
    paper = "Kirchheim et al., CVPR workshops 2022"
    detector: Literal["KNN", "Mahalanobis", "RMD", "ViM", "GEN", "KLMatching"] = "KNN"

    @property
    def needs(self) -> frozenset[Need]:
        """Features or similarities, and known images if it is fitted."""
        features = {Need.FEATURES} if self.detector in ON_FEATURES else set()
        return frozenset(features | (set() if self.detector in WITHOUT_FIT else {Need.ID_DATA}))

    @property
    def missing(self) -> str | None:
        if find_spec("pytorch_ood") is not None:
            return None
        return f"Score {self.name!r} needs pytorch-ood 0.4 or later: pip install 'pytorch-ood>=0.4'."

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        rows = self._rows(inputs, scorer)
        # Its detectors need labels from 0 without a gap.
        labels: torch.Tensor = torch.unique(inputs.similarities.argmax(dim=1), return_inverse=True)[1]
        if self.detector == "KLMatching":
            labels = inputs.similarities.argmax(dim=1)
        return {"known": evenly(rows, MAX_KEPT).contiguous(), "labels": evenly(labels, MAX_KEPT).contiguous()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        with _fitting:
            if scorer not in _fitted:
                _fitted[scorer] = self._fit(scorer)
        found, rows = _fitted[scorer], self._rows(inputs, scorer)
        # NaN is refused here, with its row; and not every detector there accepts zero images.
        check_finite(rows, rows, "features" if self.detector in ON_FEATURES else "similarities")
        if not len(rows):
            return torch.zeros(0, device=inputs.similarities.device)
        try:
            if self.detector in ON_FEATURES:
                outlier = found.predict_features(rows)
            else:
                outlier = found.predict_logits(rows)
        except ValueError as error:
            raise InputError(f"{self.spec}: pytorch-ood refuses these images: {error}") from error
        return -torch.as_tensor(outlier).float().to(inputs.similarities.device)

    def _rows(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Features or logits, on the CPU."""
        if self.detector in ON_FEATURES:
            return inputs.features.float().cpu()
        return (inputs.similarities.float() * scorer.classifier.model.logit_scale).cpu()

    def _fit(self, scorer: Scorer) -> Any:
        try:
            from pytorch_ood import detector as package
        except ImportError as error:
            raise InputError(
                f"Score {self.spec!r} needs pytorch-ood 0.4 or later, with its torchvision: {error}. pip install "
                "'pytorch-ood>=0.4'."
            ) from error
        kind = getattr(package, self.detector)
        if self.detector == "ViM":
            weight = scorer.classifier.text_features.detach().float().cpu() * scorer.classifier.model.logit_scale
            made = kind(None, round(VIM_SHARE * weight.shape[1]), weight, torch.zeros(len(weight)))
        else:
            made = kind(None)
        if self.detector in WITHOUT_FIT:
            return made
        known, labels = scorer.learned("known").cpu(), scorer.learned("labels").cpu()
        fit = made.fit_features if self.detector in ON_FEATURES else made.fit_logits
        fit(known, labels)
        return made
