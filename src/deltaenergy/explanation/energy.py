"""ΔEnergy by class, as in the paper's Figure 1A: E0, E1, and what each class that is reset adds.

    E0   = −lse(s/τ)
    E_j  = −log( e^{s̃/τ} + Σ_{k≠ŷ_j} e^{s_k/τ} )                the energy with only ŷ_j reset
    ΔE   = E1 − E0 = Σ_{j≤c} share_j,   share_j = (E_j − E0) / c      (ΔEnergy, NeurIPS 2025, eqs. 2–4)

The split is exact: E1 is by definition the mean of the E_j, each of which resets one class, so ΔE is a sum over
classes, and share_j is also the Shapley value of class j. A share is below 0 if the reset raises a class (s̃ > s_j).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.core.specs import Count, Positive, bounded
from deltaenergy.errors import InputError
from deltaenergy.report.charts import Axis, nice_ticks, padded, plain, svg
from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.report.page import figure
from deltaenergy.report.words import score_value
from deltaenergy.scores.arrays import as_rows
from deltaenergy.scores.base import Scorer
from deltaenergy.scores.multi_delta_energy import MultiDeltaEnergy

# The paper's τ and c.
TAU, C = 0.01, 2
# Classes beyond these share one row of the chart.
MOST_ROWS = 6
_ROW, _TOP, _LEFT, _RIGHT, _WIDTH = 26.0, 8.0, 128.0, 64.0, 430.0


@dataclass(frozen=True)
class ResetClass:
    """One of the c classes: its similarity, its softmax probability at τ, E_j, and its share of ΔE."""

    name: str
    similarity: float
    probability: float
    energy: float
    share: float


@dataclass(frozen=True)
class EnergyParts:
    """ΔEnergy of one image; the shares of `classes`, the most similar first, add up to `delta`."""

    tau: float
    reset: float
    e0: float
    e1: float
    delta: float
    classes: tuple[ResetClass, ...]


@bounded
def energy_parts(
    similarities: Any, classes: Sequence[str], tau: Positive = TAU, c: Count = C, reset: float = 0.0
) -> list[EnergyParts]:
    """The parts of each row of similarities (N, K) with the named classes; `c` is cut to K, `reset` is s̃."""
    rows = as_rows(similarities, "similarities").detach().cpu().double()
    if rows.shape[1] != len(classes):
        raise InputError(f"similarities have {rows.shape[1]} columns for {len(classes)} classes: give one for each.")
    logits = rows / tau
    # Stable: of equal classes the first comes first, as everywhere.
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :c]
    before = torch.logsumexp(logits, dim=1)
    resets = [logits.scatter(1, order[:, j : j + 1], reset / tau) for j in range(order.shape[1])]
    after = torch.stack([torch.logsumexp(one, dim=1) for one in resets], dim=1)
    shares = (before[:, None] - after) / order.shape[1]
    return [
        EnergyParts(
            tau=tau,
            reset=float(reset),
            e0=-float(before[i]),
            e1=-float(after[i].mean()),
            delta=float(shares[i].sum()),
            classes=tuple(
                ResetClass(
                    name=classes[k],
                    similarity=float(rows[i, k]),
                    probability=float((logits[i, k] - before[i]).exp()),
                    energy=-float(after[i, j]),
                    share=float(shares[i, j]),
                )
                for j, k in enumerate(order[i].tolist())
            ),
        )
        for i in range(len(rows))
    ]


def energy_settings(scorer: Scorer | None) -> tuple[float, int, float]:
    """τ, c and s̃ of a ΔEnergy score (the first if it has several); the paper's for any other score."""
    if scorer is None or not scorer.fitted:
        return TAU, C, 0.0
    score = scorer.score
    if isinstance(score, MultiDeltaEnergy):
        return score.taus[0], score.cs[0], 0.0
    tau, c, reset = (getattr(score, name, None) for name in ("tau", "c", "reset"))
    if "delta-energy" not in score.name or tau is None or c is None:
        return TAU, C, 0.0
    return tau, c, float(scorer.learned("background")) if isinstance(reset, str) else reset or 0.0


def energy_figure(parts: EnergyParts) -> Markup:
    """The parts as a small chart for a page: from E0 up to E1, one step for each class."""
    first = parts.classes[0]
    about = (
        f"E0 = {score_value(parts.e0)}, E1 = {score_value(parts.e1)}; of ΔE = {score_value(parts.delta)}, "
        f"{score_value(first.share)} comes from {isolated(first.name)} "
        f"(τ = {parts.tau:g}, c = {len(parts.classes)}, reset to {plain(parts.reset)})."
    )
    return figure(_chart(parts, about), join("ΔEnergy by class", tag("span", about, class_="sub")))


def _chart(parts: EnergyParts, description: str) -> Markup:
    steps = [(one.name, one.share) for one in parts.classes]
    if len(steps) > MOST_ROWS:
        rest = steps[MOST_ROWS - 1 :]
        steps = [*steps[: MOST_ROWS - 1], (f"{len(rest)} others", sum(share for _, share in rest))]
    levels = [parts.e0]
    for _, share in steps:
        levels.append(levels[-1] + share)
    bottom = _TOP + _ROW * (len(steps) + 2)
    axis = Axis(*padded(min(levels), max(levels), 0.06), start=_LEFT, end=_WIDTH - _RIGHT)
    ticks = nice_ticks(axis.low, axis.high, 4)
    content = [tag("line", x1=axis(tick), x2=axis(tick), y1=_TOP, y2=bottom, class_="grid") for tick in ticks]
    content += [tag("text", plain(tick), x=axis(tick), y=bottom + 17, class_="tick middle") for tick in ticks]
    content.append(tag("text", "energy", x=(axis.start + axis.end) / 2, y=bottom + 35, class_="label middle"))
    for row, name, level in ((0, "E0", parts.e0), (len(steps) + 1, "E1", parts.e1)):
        x, y = axis(level), _TOP + _ROW * row
        line = tag("line", x1=x, x2=x, y1=y + 3, y2=y + _ROW - 3, class_="threshold")
        content += [line, *_row(y, name, "strong end", x, score_value(level))]
    for row, (name, share) in enumerate(steps, start=1):
        y = _TOP + _ROW * row
        left, right = sorted((axis(levels[row - 1]), axis(levels[row])))
        # A share too small to be visible still takes up space.
        bar = tag("rect", x=left, y=y + 5, width=max(1.0, right - left), height=_ROW - 10)
        sign, colour = ("+", "c0") if share >= 0 else ("−", "c1")
        content.append(tag("g", bar, tag("title", f"{name}: {share:+.4g}"), class_=f"bars {colour}"))
        content += _row(y, name, "row end", right, sign + score_value(abs(share)))
    return svg(_WIDTH, bottom + 42, "ΔEnergy by class", *content, description=description)


def _row(y: float, name: str, css: str, x: float, value: str) -> list[Markup]:
    """The name on the left, and the value next to its mark."""
    short = name if len(name) <= 18 else name[:17] + "…"
    return [
        tag("text", short, x=_LEFT - 8, y=y + _ROW / 2 + 4, class_=css),
        tag("text", value, x=x + 6, y=y + _ROW / 2 + 4, class_="note"),
    ]
