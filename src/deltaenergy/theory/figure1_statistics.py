"""The statistics behind the paper's Figure 1: does attention stay under the one mask, and move under the other?

A mask's maps *stay* if their mean correlation with those before is surely above `STAYS`, and *move* if it is surely
below: at 0.7, half of the variance of the places' order is told by the map before. Means have bootstrap percentile
intervals over images (1,000 resamples), shares Wilson's; differences between masks are taken on the same images. A mask
as large, but at random, stands beside each: what it does as well is no merit of P_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deltaenergy.stats.metrics import Estimate, RankedScores, paired_mean_difference, proportion_estimate
from deltaenergy.theory.figure1 import KNOWN, MaskedSet, PaperFigure
from deltaenergy.theory.masking import BEFORE, KEEPS, KEEPS_CONTROL, REMOVES, REMOVES_CONTROL, Agreement

STAYS = 0.7
MASKS = (KEEPS, KEEPS_CONTROL, REMOVES, REMOVES_CONTROL)
# The difference of two masks' correlations, by what it says.
_DIFFERENCES = {
    "keeps − removes": (REMOVES, KEEPS),
    "keeps − at random": (KEEPS_CONTROL, KEEPS),
    "removes − at random": (REMOVES_CONTROL, REMOVES),
}


@dataclass(frozen=True)
class MaskStatistics:
    """What one mask does to a folder of images.

    Attributes:
        masked: mean share of the feature's entries that it masks.
        correlation, overlap, peak_stays: of maps of the class named before.
        correlation_named: of maps of the class that is then named.
        class_stays: share of images that are named the same class.
        similarity: mean change of that class's similarity.
        energy: mean change of the energy.
    """

    masked: float
    correlation: Estimate
    overlap: Estimate
    peak_stays: Estimate
    correlation_named: Estimate
    class_stays: Estimate
    similarity: Estimate
    energy: Estimate

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        found = {name: value._asdict() for name, value in vars(self).items() if isinstance(value, Estimate)}
        return {"masked": self.masked, **found}


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, whether it holds on these images, and the figures in words."""

    claim: str
    holds: bool
    found: str


def mean_estimate(values: npt.NDArray[Any]) -> Estimate:
    """A mean with its bootstrap percentile interval."""
    return paired_mean_difference(np.zeros(len(values)), values)


def share_estimate(answers: npt.NDArray[np.bool_]) -> Estimate:
    """A share with its Wilson interval, which the bootstrap has none of where all answers agree."""
    return proportion_estimate(int(answers.sum()), len(answers))


def mask_statistics(one: MaskedSet) -> dict[str, MaskStatistics]:
    """By mask."""
    before = one.seen[BEFORE]
    found = {}
    for mask in MASKS:
        seen, same = one.seen[mask], one.same_class[mask]
        found[mask] = MaskStatistics(
            masked=float(seen.masked.mean()),
            correlation=mean_estimate(same.correlation),
            overlap=mean_estimate(same.overlap),
            peak_stays=share_estimate(same.peak_stays),
            correlation_named=mean_estimate(one.then_named[mask].correlation),
            class_stays=share_estimate(seen.named == before.named),
            similarity=paired_mean_difference(before.similarity, seen.similarity),
            energy=paired_mean_difference(before.energy, seen.energy),
        )
    return found


def correlation_differences(agreements: dict[str, Agreement]) -> dict[str, Estimate]:
    """Between masks, on the same images."""
    return {
        name: paired_mean_difference(agreements[first].correlation, agreements[second].correlation)
        for name, (first, second) in _DIFFERENCES.items()
    }


def detection(figure: PaperFigure) -> Estimate:
    """AUROC of ΔEnergy, known against unknown."""
    return RankedScores(figure.known.delta, figure.unknown.delta).estimates()["auroc"]


def claims(figure: PaperFigure) -> list[Claim]:
    """What the paper says of its Figure 1, held against these images; of attention, the known ones."""
    auroc = detection(figure)
    means = [one.delta.mean() for one in figure.sets.values()]
    statistics = mask_statistics(figure.known)
    apart = correlation_differences(dict(figure.known.same_class))
    kept, removed = statistics[KEEPS].correlation, statistics[REMOVES].correlation
    chance = {mask: statistics[mask].correlation for mask in (KEEPS_CONTROL, REMOVES_CONTROL)}
    return [
        Claim(
            "ΔEnergy is larger for known than for unknown images",
            auroc.low > 0.5,
            f"AUROC {_share(auroc)}; mean ΔE {means[0]:.3g} against {means[1]:.3g}.",
        ),
        Claim(
            "Attention stays where P_j < 0 is masked",
            kept.low > STAYS,
            f"The maps keep a correlation of {_number(kept)}; with as many entries masked at random "
            f"{_number(chance[KEEPS_CONTROL])}, a difference of {_number(apart['keeps − at random'])}.",
        ),
        Claim(
            "Attention moves where P_j > 0 is masked",
            removed.high < STAYS,
            f"The maps keep a correlation of {_number(removed)}; with as many entries masked at random "
            f"{_number(chance[REMOVES_CONTROL])}, a difference of {_number(apart['removes − at random'])}.",
        ),
        Claim(
            "It stays more under the first mask than under the second",
            apart["keeps − removes"].low > 0,
            f"The correlations differ by {_number(apart['keeps − removes'])}.",
        ),
        Claim(
            "Masking P_j > 0 takes the class away",
            statistics[REMOVES].class_stays.high < 0.5,
            f"{_share(statistics[REMOVES].class_stays)} are still named the same class, with P_j < 0 masked "
            f"{_share(statistics[KEEPS].class_stays)}.",
        ),
    ]


def figure_record(figure: PaperFigure, command: str = "") -> dict[str, Any]:
    """Everything as JSON values: claims, statistics of both folders, and one row per image."""
    return {
        "claims": [vars(claim) for claim in claims(figure)],
        "auroc": detection(figure)._asdict(),
        "sets": {
            name: {
                "images": len(one),
                "masks": {mask: found.to_dict() for mask, found in mask_statistics(one).items()},
                "differences": {
                    key: value._asdict() for key, value in correlation_differences(dict(one.same_class)).items()
                },
                "rows": [_row(figure, one, i) for i in range(len(one))],
                "unreadable": [{"path": image.id, "reason": image.reason} for image in one.unreadable],
            }
            for name, one in figure.sets.items()
        },
        "provenance": {**figure.provenance, **({"command": command} if command else {})},
    }


def _row(figure: PaperFigure, one: MaskedSet, i: int) -> dict[str, Any]:
    return {
        "image": one.names[i],
        "energy_parts": one.parts[i].to_dict(),
        "masks": {
            mask: {
                "named": figure.classes[seen.named[i]],
                "top_similarity": float(seen.top[i]),
                "similarity": float(seen.similarity[i]),
                "energy": float(seen.energy[i]),
                "correlation": 1.0 if mask == BEFORE else float(one.same_class[mask].correlation[i]),
            }
            for mask, seen in one.seen.items()
        },
    }


def of_whom(figure: PaperFigure) -> str:
    """Which images the claims on attention were held against."""
    return f"{len(figure.known):,} {KNOWN} images"


def _number(value: Estimate) -> str:
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})".replace("-", "−")


def _share(value: Estimate) -> str:
    return f"{100 * value.value:.1f} % ({100 * value.low:.1f} to {100 * value.high:.1f})"
