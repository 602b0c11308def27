"""Every score, stream adapter and tuning method as plain data, for `deltaenergy methods` and the docs."""

from __future__ import annotations

from typing import Any

from deltaenergy.classifiers.methods import METHODS, Term, list_methods
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Settings
from deltaenergy.scores.adaptive import ADAPTERS
from deltaenergy.scores.registry import list_scores, make_score

OF_ADAPTERS = ["similarities", "features", "texts", "the images before, in order"]


def describe_methods() -> list[dict[str, Any]]:
    """For each: name, kind, summary, formula, needs, defaults, presets and paper."""
    adapters = [_row("stream adapter", cls(), OF_ADAPTERS) for _, cls in ADAPTERS.items()]
    return [*_scores(), *adapters, *_tuning_methods()]


def _scores() -> list[dict[str, Any]]:
    def needs(spec: str) -> list[str]:
        return sorted(need.value for need in make_score(spec).needs)

    rows = [_row("score", make_score(name), ["similarities", *needs(name)]) for name in list_scores()]
    for row in rows:
        # A preset can need more than its score.
        row["preset_needs"] = {preset: needs(f"{row['name']}:{preset}") for preset in row["presets"]}
    return rows


def _tuning_methods() -> list[dict[str, Any]]:
    rows = []
    for method in (METHODS.get(name)() for name in list_methods()):
        needs = sorted(need.value for need in getattr(method, "needs_to_train", ()) if need is not Need.FEATURES)
        kind = "tuning term" if isinstance(method, Term) else "tuning method"
        rows.append(_row(kind, method, ["labelled images", *needs]))
    return rows


def _row(kind: str, settings: Settings, needs: list[str]) -> dict[str, Any]:
    return {
        "name": settings.name,
        "kind": kind,
        "summary": settings.summary,
        "formula": settings.formula,
        "needs": needs,
        "defaults": settings.params,
        "presets": {preset: dict(values) for preset, values in settings.presets.items()},
        "paper": settings.paper,
    }
