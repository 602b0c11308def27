"""Both ways between pytorch-ood (0.4 or later) and this package.

detectors.py    our scores as its detectors: `ScoreOnLogits`, `ScoreOnFeatures` (there larger = more unknown)
scores.py       its detectors as our score `pytorch-ood`

pytorch-ood is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.bridges.pytorch_ood.detectors import ScoreOnFeatures, ScoreOnLogits
    from deltaenergy.bridges.pytorch_ood.scores import PytorchOod

__all__ = ["PytorchOod", "ScoreOnFeatures", "ScoreOnLogits"]


def __getattr__(name: str) -> Any:
    if name in ("ScoreOnFeatures", "ScoreOnLogits"):
        from deltaenergy.bridges.pytorch_ood import detectors

        return getattr(detectors, name)
    if name == "PytorchOod":
        from deltaenergy.bridges.pytorch_ood.scores import PytorchOod

        return PytorchOod
    raise AttributeError(f"module 'deltaenergy.bridges.pytorch_ood' has no attribute {name!r}")
