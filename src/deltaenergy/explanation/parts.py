"""ΔEnergy taken apart, as in the paper's Figure 1A: E0, E1, and what each class that was reset adds.

    E0   = −lse(s/τ)
    E_j  = −log( e^{s̃/τ} + Σ_{k≠ŷ_j} e^{s_k/τ} )                the energy with ŷ_j alone reset
    ΔE   = E1 − E0 = Σ_{j≤c} share_j,   share_j = (E_j − E0) / c      (ΔEnergy, NeurIPS 2025, eqs. 2–4)

The split needs no choice. E1 is by definition the mean of the E_j, each of which resets its own class and no other, so
that ΔE is a sum with one term for each class. For such a sum the order in which classes are looked at plays no part,
and share_j is also the Shapley value of class j. A share is below 0 where the reset lifts a class (s̃ > s_j).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from deltaenergy.errors import InputError
from deltaenergy.report.charts import Axis, nice_ticks, padded, plain, svg
from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.report.page import figure
from deltaenergy.report.words import score_value
from deltaenergy.scores.arrays import as_rows
from deltaenergy.scores.base import Scorer
from deltaenergy.scores.delta_energy import check_parameters
from deltaenergy.scores.multi_delta_energy import MultiDeltaEnergy

# The paper's τ and c.
TAU, C = 0.01, 2
# Classes beyond these share one row of the chart.
MOST_ROWS = 6
_ROW, _LEFT, _RIGHT = 26.0, 128.0, 64.0


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
    """ΔEnergy of one image, taken apart; the shares of `classes`, the most similar first, add up to `delta`."""

    tau: float
    reset: float
    e0: float
    e1: float
    delta: float
    classes: tuple[ResetClass, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "classes": [asdict(one) for one in self.classes]}


def energy_parts(
    similarities: Any, classes: Sequence[str], tau: float = TAU, c: int = C, reset: float = 0.0
) -> list[EnergyParts]:
    """The parts of each row of similarities (N, K) with the named classes; `c` is cut to K, `reset` is s̃."""
    check_parameters(tau, c, reset)
    rows = as_rows(similarities, "similarities").detach().cpu().double()
    if rows.shape[1] != len(classes):
        raise InputError(f"similarities have {rows.shape[1]} columns for {len(classes)} classes: give one for each.")
    logits = rows / tau
    # Stable, so that of equal classes the first comes first, as everywhere.
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :c]
    before = torch.logsumexp(logits, dim=1)
    after = torch.stack([_with_reset(logits, order[:, j], reset / tau) for j in range(order.shape[1])], dim=1)
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


def _with_reset(logits: torch.Tensor, position: torch.Tensor, reset: float) -> torch.Tensor:
    """The lse of each row with the entry at `position` reset."""
    return torch.logsumexp(logits.scatter(1, position[:, None], reset), dim=1)


def energy_settings(scorer: Scorer) -> tuple[float, int, float]:
    """τ, c and s̃ that a score computes ΔEnergy with; the paper's for a score that has none of its own.

    Of several temperatures it is the first.
    """
    score = scorer.score
    if isinstance(score, MultiDeltaEnergy):
        return score.taus[0], score.cs[0], 0.0
    tau, c, reset = (getattr(score, name, None) for name in ("tau", "c", "reset"))
    if "delta-energy" not in score.name or tau is None or c is None:
        return TAU, C, 0.0
    return tau, c, float(scorer.learned("background")) if isinstance(reset, str) else reset or 0.0


def parts_fragment(parts: EnergyParts) -> Markup:
    """The parts as a small chart in the look of a report: from E0 up to E1, one step for each class."""
    likeliest = parts.classes[0]
    told = (
        f"E0 = {score_value(parts.e0)}, E1 = {score_value(parts.e1)}; of ΔE = {score_value(parts.delta)}, "
        f"{score_value(likeliest.share)} comes from {isolated(likeliest.name)}"
    )
    about = f"{told} (τ = {parts.tau:g}, c = {len(parts.classes)}, reset to {plain(parts.reset)})."
    return figure(_chart(parts, about), join("ΔEnergy taken apart", tag("span", about, class_="sub")))


def _chart(parts: EnergyParts, description: str) -> Markup:
    steps = [(one.name, one.share) for one in parts.classes]
    if len(steps) > MOST_ROWS:
        rest = steps[MOST_ROWS - 1 :]
        steps = [*steps[: MOST_ROWS - 1], (f"{len(rest)} others", sum(share for _, share in rest))]
    levels = [parts.e0]
    for _, share in steps:
        levels.append(levels[-1] + share)
    width, top = 430.0, 8.0
    bottom = top + _ROW * (len(steps) + 2)
    axis = Axis(*padded(min(levels), max(levels), 0.06), start=_LEFT, end=width - _RIGHT)
    content = [
        tag("line", x1=axis(tick), x2=axis(tick), y1=top, y2=bottom, class_="grid")
        for tick in nice_ticks(axis.low, axis.high, 4)
    ]
    content += [
        tag("text", plain(tick), x=axis(tick), y=bottom + 17, class_="tick middle")
        for tick in nice_ticks(axis.low, axis.high, 4)
    ]
    content.append(tag("text", "energy", x=(axis.start + axis.end) / 2, y=bottom + 35, class_="label middle"))
    content.append(_level("E0", parts.e0, axis, top))
    for row, (name, share) in enumerate(steps, start=1):
        y = top + _ROW * row
        left, right = sorted((axis(levels[row - 1]), axis(levels[row])))
        # A share too small to be seen still has its place.
        bar = tag("rect", x=left, y=y + 5, width=max(1.0, right - left), height=_ROW - 10)
        content.append(
            tag("g", bar, tag("title", f"{name}: {share:+.4g}"), class_=f"bars {'c0' if share >= 0 else 'c1'}")
        )
        content.append(tag("text", _short(name), x=_LEFT - 8, y=y + _ROW / 2 + 4, class_="row end"))
        said = f"{'+' if share >= 0 else '−'}{score_value(abs(share))}"
        content.append(tag("text", said, x=right + 6, y=y + _ROW / 2 + 4, class_="note"))
    content.append(_level("E1", parts.e1, axis, top + _ROW * (len(steps) + 1)))
    return svg(width, bottom + 42, "ΔEnergy taken apart", *content, description=description)


def _level(name: str, value: float, axis: Axis, top: float) -> Markup:
    x = axis(value)
    return join(
        tag("line", x1=x, x2=x, y1=top + 3, y2=top + _ROW - 3, class_="threshold"),
        tag("text", name, x=_LEFT - 8, y=top + _ROW / 2 + 4, class_="strong end"),
        tag("text", score_value(value), x=x + 6, y=top + _ROW / 2 + 4, class_="note"),
    )


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
