"""Optimal transport between the parts of an image and several texts of a class, with entropy.

    T = argmax_T Σ_pn T_pn s_pn + ε H(T)   with rows summing to 1/P, columns to 1/N

by Sinkhorn's iteration (Cuturi, NeurIPS 2013) on logarithms, where nothing underflows: in turn

    f_p = −log P − lse_n(s_pn/ε + g_n),   g_n = −log N − lse_p(s_pn/ε + f_p),   T = exp(s/ε + f + g)

Every problem stops on its own when its rows are exact to 1e-6, or after 100 steps, the limit in PLOT's code, so no
image depends on its batch. A few parts with very different cosines can need more: four parts and four texts whose
cosines differ by 0.6 miss by up to 1e-3 at ε = 0.05. Many patches do not.
"""

from __future__ import annotations

import math

import torch

MAX_STEPS = 100
ROW_ERROR = 1e-6
# Similarities whose plans are computed together: about 100 MB with intermediates.
ENTRIES_AT_ONCE = 2**22


def transported(similarities: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Σ_pn T_pn s_pn for similarities (B, K, P, N) -> (B, K). No gradient flows through T."""
    per_image = max(1, similarities[:1].numel())
    with torch.no_grad():
        parts = torch.split(similarities.detach(), max(1, ENTRIES_AT_ONCE // per_image))
        plans = torch.cat([transport_plan(part, epsilon) for part in parts])
    return (plans * similarities).sum(dim=(-2, -1))


def transport_plan(similarities: torch.Tensor, epsilon: float) -> torch.Tensor:
    """T for similarities (..., P, N), in at least single precision: columns exact, rows to 1e-6 if steps suffice."""
    scaled = (similarities if similarities.dtype == torch.float64 else similarities.float()) / epsilon
    rows, columns = (math.log(count) for count in scaled.shape[-2:])

    def of_rows(g: torch.Tensor) -> torch.Tensor:
        return -rows - torch.logsumexp(scaled + g, dim=-1, keepdim=True)

    def of_columns(f: torch.Tensor) -> torch.Tensor:
        return -columns - torch.logsumexp(scaled + f, dim=-2, keepdim=True)

    f = of_rows(torch.zeros_like(scaled[..., :1, :]))
    g = of_columns(f)
    goes_on = torch.ones_like(scaled[..., :1, :1], dtype=torch.bool)
    for _ in range(MAX_STEPS - 1):
        better = of_rows(g)
        # With the current f and g a row sums to exp(f − better)/P.
        error = (torch.expm1(f - better).abs() * math.exp(-rows)).amax(dim=-2, keepdim=True)
        goes_on = goes_on & (error > ROW_ERROR)
        if not goes_on.any():
            break
        f = torch.where(goes_on, better, f)
        g = torch.where(goes_on, of_columns(f), g)
    return (scaled + f + g).exp()
