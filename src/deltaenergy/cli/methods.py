"""`deltaenergy methods`: every score, stream adapter and tuning method with its formula, needs, defaults and paper."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deltaenergy.cli import common
from deltaenergy.cli.common import out


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this one only.")] = None,
    json_output: common.JsonOption = False,
) -> None:
    """List the scores, the adapters of score --adapt and the tuning methods: formula, needs, defaults and paper."""
    rows = [*_scores(), *_adapters(), *_tuning_methods()]
    if name is not None:
        from deltaenergy.errors import InputError, did_you_mean

        known = [row["name"] for row in rows]
        if name not in known:
            raise InputError(f"Unknown method {name!r}.{did_you_mean(name, known)}")
        rows = [row for row in rows if row["name"] == name]
    if json_output:
        common.print_json(rows)
        return
    for row in rows:
        _print_method(row)


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
    from deltaenergy.needs import Need

    rows: list[dict[str, Any]] = []
    for name in list_methods():
        cls = get_method_class(name)
        attaches = issubclass(cls, Term)
        needs = sorted(need.value for need in getattr(cls(), "needs", ()) if need is not Need.FEATURES)
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


def _print_method(row: dict[str, Any]) -> None:
    from rich.text import Text

    kind = "" if row["kind"] == "score" else f"  [{row['kind']}]"
    out.print(Text(row["name"], "bold cyan"), Text(kind, "dim"), Text(f"  {row['summary']}"), sep="")
    lines = {
        "formula": row["formula"],
        "needs": ", ".join(row["needs"]),
        "defaults": ", ".join(f"{key}={value}" for key, value in row["defaults"].items()) or "none",
        "presets": ", ".join(
            f"{row['name']}:{preset} ({', '.join(f'{k}={v}' for k, v in values.items())})"
            + (f", needs {', '.join(needs)}" if (needs := row.get("preset_needs", {}).get(preset)) else "")
            for preset, values in row["presets"].items()
        ),
        "paper": row["paper"],
    }
    for key, text in lines.items():
        if text:
            out.print(Text(f"  {key:<9}", "dim"), Text(text), sep="", soft_wrap=True)
    out.print()
