"""Theorem 3: −L_ΔE is a lower bound of ΔEnergy (c = 1) under a condition. Checked image by image.

With Z = Σ_k e^{s_k/τ}, Z' = Σ_k e^{s'_k/τ} (masked features) and a = e^{s_1/τ} − e^{s̃/τ}, s̃ = 0:

    ΔE = log Z − log(Z − a),   L_ΔE = E2 − E0 = log Z − log Z'

The paper's condition is L_ΔE ≤ ε_E and a ≥ (e^{ε_E} − 1) Z'. Its smallest ε_E is L_ΔE itself, where the condition reads
a ≥ Z − Z'. But its proof needs a ≥ Z' − Z, which is the same only up to sign: where masking raises the energy sum
(Z' > Z, L_ΔE < 0, the usual case) an ε_E ≤ 0 makes the condition hold trivially, and with an ε_E > 0 it is not
sufficient. So three conditions are reported:

    stated     L ≤ ε_E and a ≥ (e^{ε_E} − 1) Z'   the paper's, with a given ε_E, else each image's smallest, L
    absolute   a ≥ (e^{|L|} − 1) Z'               the paper's, with ε_E = |L|: sufficient
    needed     a ≥ Z' − Z                         what the proof uses: sufficient, and weaker than `absolute`
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deltaenergy.classifiers.base import Outputs
from deltaenergy.classifiers.ebm import compare, keep_mask

# Equalities are reached when both sides agree to rounding.
SLACK = 1e-9


@dataclass(frozen=True)
class BoundCheck:
    """Per image: ΔEnergy, L_ΔE, whether ΔEnergy ≥ −L_ΔE, and which conditions hold."""

    delta_energy: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    holds: npt.NDArray[np.bool_]
    stated: npt.NDArray[np.bool_]
    absolute: npt.NDArray[np.bool_]
    needed: npt.NDArray[np.bool_]
    mask_distance: npt.NDArray[np.float64]

    @property
    def margin(self) -> npt.NDArray[np.float64]:
        """ΔEnergy + L_ΔE: the bound holds if this is not negative."""
        return self.delta_energy + self.loss

    @property
    def counterexamples(self) -> int:
        """Images where the paper's condition holds and its conclusion does not."""
        return int((self.stated & ~self.holds).sum())


def check_bound(
    features: torch.Tensor,
    texts: torch.Tensor,
    p: float,
    tau: float,
    epsilon: float | None = None,
) -> BoundCheck:
    """Theorem 3 for unit features (N, D) and texts (K, D), in float64; `epsilon` is the paper's ε_E."""
    z, t = features.double(), texts.double()
    outputs = Outputs(z @ t.T, z, t)
    mask = keep_mask(outputs, p)
    plain, masked = outputs.similarities / tau, compare(z * mask, t) / tau
    log_z, log_masked = torch.logsumexp(plain, dim=1), torch.logsumexp(masked, dim=1)
    top, index = plain.max(dim=1)
    others = plain.scatter(1, index[:, None], 0.0)
    delta = log_z - torch.logsumexp(others, dim=1)
    loss = log_z - log_masked
    # All sums in units of the larger one, so nothing overflows.
    unit = torch.maximum(log_z, log_masked)
    a = (top - unit).exp() - (-unit).exp()
    z_sum, masked_sum = (log_z - unit).exp(), (log_masked - unit).exp()
    level = loss if epsilon is None else torch.full_like(loss, epsilon)
    stated = (loss <= level) & (a >= torch.expm1(level) * masked_sum - SLACK)

    def array(values: torch.Tensor) -> npt.NDArray[np.float64]:
        return values.cpu().numpy()

    return BoundCheck(
        delta_energy=array(delta),
        loss=array(loss),
        holds=array(delta >= -loss - SLACK).astype(bool),
        stated=array(stated).astype(bool),
        absolute=array(a >= torch.expm1(loss.abs()) * masked_sum).astype(bool),
        needed=array(a >= masked_sum - z_sum).astype(bool),
        mask_distance=array((z - z * mask).norm(dim=1)),
    )
