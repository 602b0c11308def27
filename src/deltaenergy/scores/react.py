"""ReAct: clip unusually large feature entries, then energy (Sun et al., NeurIPS 2021).

    z'_d = min(z_d, b),   b the P-th percentile of all entries of ID features;   score = T · lse(s(z')/T)

The clipped feature is not normalised again. b is fitted when the detector is calibrated, and saved with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch

from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Positive, Range, bounded
from deltaenergy.scores.arrays import as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.energy import energy
from deltaenergy.scores.registry import register_score


@bounded
def react(similarities_of: Callable[[Any], Any], features: Any, bound: float, temperature: Positive = 0.01) -> Any:
    """Energy of the similarities of clipped features (formula above).

    Args:
        similarities_of: clipped features (N, D) -> similarities (N, K), both tensors or both arrays.
        features: (N, D), tensor or array.
        bound: b.
        temperature: T.
    """
    # Before clipping, which would turn an infinite entry into an ordinary one.
    as_rows(features, "features")
    return energy(similarities_of(features.clip(max=bound)), temperature)


@register_score
@dataclass(frozen=True)
class ReAct(Score):
    """`react` as a Score: energy of the classifier's similarities for clipped features, tuned classifiers included."""

    name = "react"
    summary = "energy after clipping feature entries at a percentile of ID entries"
    formula = "T · lse(s(min(z, b))/T), b = P-th percentile of ID feature entries"
    paper = "Sun et al., NeurIPS 2021"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})
    percentile: Annotated[float, Range(0, 100, above=True)] = 90.0
    temperature: Positive = 0.01

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """b, the percentile of all feature entries (linear interpolation)."""
        # NumPy, because torch.quantile accepts at most 16 million entries.
        bound = np.percentile(inputs.features.float().cpu().numpy(), self.percentile)
        return {"bound": torch.tensor(float(bound), dtype=torch.float64)}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        def similarities_of(clipped: torch.Tensor) -> torch.Tensor:
            return scorer.classifier(replace(inputs.for_classifier, features=clipped)).similarities

        found = react(similarities_of, inputs.features, float(scorer.learned("bound")), self.temperature)
        return torch.as_tensor(found)
