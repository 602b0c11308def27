"""Every score, stream adapter and tuning method as plain data, for `deltaenergy methods` and the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.core.specs import Settings


def describe_methods() -> list[dict[str, Any]]:
    """For each: name, kind, summary, formula, needs, defaults, presets and paper."""
    return [*_scores(), *_adapters(), *_tuning_methods()]


def _scores() -> list[dict[str, Any]]:
    from deltaenergy.scores.registry import list_scores, make_score

    def needs(spec: str) -> list[str]:
        return sorted(need.value for need in make_score(spec).needs)

    rows = [_row("score", make_score(name), ["similarities", *needs(name)]) for name in list_scores()]
    for row in rows:
        # A preset can need more than its score.
        row["preset_needs"] = {preset: needs(f"{row['name']}:{preset}") for preset in row["presets"]}
    return rows


def _adapters() -> list[dict[str, Any]]:
    from deltaenergy.scores.adaptive import ADAPTERS

    needs = ["similarities", "features", "texts", "the images before, in order"]
    return [_row("stream adapter", cls(), needs) for _, cls in ADAPTERS.items()]


def _tuning_methods() -> list[dict[str, Any]]:
    from deltaenergy.classifiers.methods import Term, get_method_class, list_methods
    from deltaenergy.core.needs import Need

    rows = []
    for method in (get_method_class(name)() for name in list_methods()):
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
