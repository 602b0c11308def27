"""ReAct: clip unusually large feature entries, then energy (Sun et al., NeurIPS 2021).

    z'_d = min(z_d, b),   b the P-th percentile of all entries of ID features;   score = T · lse(s(z')/T)

The clipped feature is not normalised again. b is fitted when the detector is calibrated, and saved with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deltaenergy.errors import InputError
from deltaenergy.needs import Need
from deltaenergy.scores.arrays import check_finite
from deltaenergy.scores.base import Score, ScoreInputs, check_positive
from deltaenergy.scores.logits import energy
from deltaenergy.scores.registry import register_score


@register_score
@dataclass(frozen=True)
class ReAct(Score):
    """Energy of the classifier's similarities for clipped features: any classifier, tuned ones included."""

    name = "react"
    summary = "energy after clipping feature entries at a percentile of ID entries"
    formula = "T · lse(s(min(z, b))/T), b = P-th percentile of ID feature entries"
    paper = "Sun et al., NeurIPS 2021"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})
    percentile: float = 90.0
    temperature: float = 0.01

    def check(self) -> None:
        """T > 0, percentile within 0–100."""
        check_positive(self.name, temperature=self.temperature)
        if not 0 < self.percentile <= 100:
            raise InputError(f"{self.name}: percentile must be above 0 and at most 100, got {self.percentile!r}.")

    def fit(self, inputs: ScoreInputs) -> None:
        """Set b to the percentile of all feature entries (linear interpolation)."""
        # NumPy, because torch.quantile takes no more than 16 million entries.
        bound = np.percentile(inputs.features.float().cpu().numpy(), self.percentile)
        self.state["bound"] = torch.tensor(float(bound), dtype=torch.float64)

    def __call__(self, inputs: ScoreInputs) -> torch.Tensor:
        """Scores (N,)."""
        classifier = self.classifier
        # Before clipping, which would turn an infinite entry into an ordinary one.
        check_finite(inputs.features.sum(dim=1), inputs.features, "features")
        clipped = inputs.features.clamp(max=float(self.learned("bound")))
        return torch.as_tensor(energy(classifier.similarities_of_features(clipped), self.temperature))
