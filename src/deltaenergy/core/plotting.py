"""Figures of verdicts, detectors and evaluations for notebooks, by matplotlib where that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

# Told apart by people who see colours otherwise, too (Okabe and Ito).
KNOWN, UNKNOWN, LINE = "#0072B2", "#D55E00", "#444444"


def axes(ax: Any = None) -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError(
            "Figures need matplotlib, which is not installed: pip install matplotlib. `write_report` makes a page "
            "with figures without it."
        ) from None
    return pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1] if ax is None else ax


def score_histogram(
    groups: Mapping[str, npt.NDArray[np.float64]], threshold: float | None, score: str, ax: Any = None
) -> Any:
    """How the scores of some groups are spread, on common bins, with the threshold between them."""
    ax = axes(ax)
    finite = {name: values[np.isfinite(values)] for name, values in groups.items()}
    everything = np.concatenate([np.zeros(0), *finite.values()])
    if len(everything):
        edges = np.histogram_bin_edges(everything, bins=min(40, max(5, int(np.sqrt(len(everything)) * 2))))
        for (name, values), colour in zip(finite.items(), cycle((KNOWN, UNKNOWN, "#009E73", "#CC79A7"))):
            ax.hist(values, edges, alpha=0.6, color=colour, label=f"{name} ({len(values)})")
    if threshold is not None:
        ax.axvline(threshold, color=LINE, linestyle="--", label=f"threshold {threshold:.4g}")
    ax.set_xlabel(f"{score}, larger = more like the known classes")
    ax.set_ylabel("images")
    ax.legend(frameon=False)
    return ax


def roc_curves(curves: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]], ax: Any = None) -> Any:
    """Curves (false positive rate, true positive rate) by name."""
    ax = axes(ax)
    for name, (false_positives, true_positives) in curves.items():
        ax.plot(false_positives, true_positives, label=name)
    ax.plot([0, 1], [0, 1], color=LINE, linestyle=":", linewidth=1)
    ax.set_xlabel("unknown images kept")
    ax.set_ylabel("known images kept")
    ax.set_aspect("equal")
    ax.legend(frameon=False, loc="lower right")
    return ax
