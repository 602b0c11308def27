"""ΔEnergy as a detector of pytorch-ood, on the logits of any network.

    python examples/pytorch_ood_scores.py

Needs `pip install 'pytorch-ood>=0.4'`. There, larger = more unknown.
"""

from __future__ import annotations

import torch

from deltaenergy.bridges.pytorch_ood import ScoreOnLogits


def main() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(8, 5)  # yours
    detector = ScoreOnLogits(network, "delta-energy(tau=1,c=1)", logit_scale=1.0)
    known = 20 * network.weight.detach()[torch.arange(10) % 5]  # each far along the direction of a class
    unknown = torch.randn(10, 8)
    print(f"known {detector(known).mean():.3f}, unknown {detector(unknown).mean():.3f}")


if __name__ == "__main__":
    main()
