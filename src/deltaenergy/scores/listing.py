"""Every score, stream adapter and tuning method as plain data: what `deltaenergy methods` and the site tell of it."""

from __future__ import annotations

from typing import Any


def describe_methods() -> list[dict[str, Any]]:
    """For each: name, kind, summary, formula, needs, defaults, presets and paper."""
    return [*_scores(), *_adapters(), *_tuning_methods()]


def _scores() -> list[dict[str, Any]]:
    from deltaenergy.scores.registry import get_score_class, list_scores, make_score

    rows: list[dict[str, Any]] = []
    for name in list_scores():
        cls = get_score_class(name)
        rows.append(
            {
                "name": name,
                "kind": "score",
                "summary": cls.summary,
                "formula": cls.formula,
                "needs": ["similarities", *sorted(need.value for need in make_score(name).needs)],
                "defaults": make_score(name).params,
                "presets": {preset: dict(values) for preset, values in cls.presets.items()},
                # A preset can need more than its score does otherwise.
                "preset_needs": {
                    preset: sorted(need.value for need in make_score(f"{name}:{preset}").needs)
                    for preset in cls.presets
                },
                "paper": cls.paper,
            }
        )
    return rows


def _adapters() -> list[dict[str, Any]]:
    from deltaenergy.scores.adaptive import ADAPTERS

    return [
        {
            "name": name,
            "kind": "stream adapter",
            "summary": cls.summary,
            "formula": cls.formula,
            "needs": ["similarities", "features", "texts", "the images before, in order"],
            "defaults": cls().params,
            "presets": {},
            "paper": cls.paper,
        }
        for name, cls in ADAPTERS.items()
    ]


def _tuning_methods() -> list[dict[str, Any]]:
    from deltaenergy.classifiers.methods import Term, get_method_class, list_methods
    from deltaenergy.core.needs import Need

    rows: list[dict[str, Any]] = []
    for name in list_methods():
        cls = get_method_class(name)
        attaches = issubclass(cls, Term)
        needs = sorted(need.value for need in getattr(cls(), "needs_to_train", ()) if need is not Need.FEATURES)
        rows.append(
            {
                "name": name,
                "kind": "tuning term" if attaches else "tuning method",
                "summary": cls.summary,
                "formula": cls.formula,
                "needs": ["labelled images", *needs],
                "defaults": cls().params,
                "presets": {preset: dict(values) for preset, values in cls.presets.items()},
                "paper": cls.paper,
            }
        )
    return rows
