"""Numbers in words and in print: the same everywhere in a report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.stats.metrics import Estimate

if TYPE_CHECKING:
    from deltaenergy.evaluation.summary import BestScore

METRIC_NAMES = {"auroc": "AUROC", "aupr_in": "AUPR-in", "aupr_out": "AUPR-out"}


def metric_name(name: str) -> str:
    """`fpr95` as FPR95, `fpr95_ood` as FPR95 (open), and so on."""
    if name.startswith("fpr"):
        return f"FPR{name[3:-4]} (open)" if name.endswith("_ood") else f"FPR{name[3:]}"
    return METRIC_NAMES.get(name, name)


def percent(share: float, digits: int | None = 1) -> str:
    """A share as a percentage: 93.4%; never rounded to 0 or 100 when it is neither. Without `digits`, all it has."""
    if digits is None or share in (0, 1):
        return f"{100 * share:.6g}%"
    text = f"{100 * share:.{digits}f}"
    if (share < 1 and float(text) == 100) or (share > 0 and float(text) == 0):
        bound = f"> {100 - 10**-digits:.{digits}f}" if share > 0.5 else f"< {10**-digits:.{digits}f}"
        return f"{bound}%".replace(" ", "\u00a0")
    return f"{text}%"


def estimate(value: Estimate, *, best: bool = False) -> Markup:
    return join(
        tag("span", percent(value.value), class_="best" if best else None),
        tag("span", interval(value), class_="interval"),
    )


def interval(value: Estimate) -> str:
    """`93.1 to 95.0`; a dash where all resamples agree, because that means too easy a test, not certainty."""
    return f"{100 * value.low:.1f} to {100 * value.high:.1f}" if value.high > value.low else "–"


def points(change: float) -> str:
    """A difference of shares in percentage points, with its sign: +1.2, −0.3."""
    text = f"{100 * change:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def change_in_points(change: Estimate) -> str:
    """`+1.2 (0.3 to +2.0)`."""
    return f"{points(change.value)} ({points(change.low)} to {points(change.high)})"


def best_in_words(found: BestScore) -> tuple[str, str, str]:
    """A sentence in three pieces: the number of scores, the best score, its interval and its lead."""
    area, lead = found.best.metrics["auroc"], f"{found.second.score}, is {change_in_points(found.lead)}"
    if found.lead.value == 0:
        verdict = f"The next score, {found.second.score}, does as well on these images."
    elif found.lead.low > 0:
        verdict = f"Its lead over the next score, {lead}: more than chance."
    else:
        verdict = f"Its lead over the next score, {lead}: these images cannot separate the two."
    within = f" ({interval(area)})" if area.high > area.low else ""
    rest = f", which ranks a known image above an unknown one in {percent(area.value)}{within} of cases. {verdict}"
    return f"Best of {found.scores} scores:", found.best.score, rest


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 image`, `1,200 images`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def one_in(share: float) -> str:
    """A small share in words: about 1 in 8. Empty if that says no more than the percentage."""
    if not 0.004 < share < 0.4:
        return ""
    return f"about 1 in {round(1 / share)}"


def join_names(names: list[str], most: int = 4) -> str:
    """`a, b and c`, or `a, b, c and 7 more`."""
    names = list(map(isolated, names))
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def score_value(value: float) -> str:
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else str(value)
