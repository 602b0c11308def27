"""`deltaenergy methods`: every score, stream adapter and tuning method in a short table, or all about one of them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import out
from deltaenergy.cli.shell.options import complete_score_or_method


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show this one only.", autocompletion=complete_score_or_method)
    ] = None,
    json_output: common.JsonOption = False,
) -> None:
    """List the scores, the adapters of score --adapt and the tuning methods; with a NAME, all about that one."""
    from deltaenergy.scores.listing import describe_methods

    rows = describe_methods()
    if name is not None:
        from deltaenergy.errors import InputError, did_you_mean

        known = [row["name"] for row in rows]
        if name not in known:
            raise InputError(f"Unknown method {name!r}.{did_you_mean(name, known)}")
        rows = [row for row in rows if row["name"] == name]
    if json_output:
        common.print_json(rows)
        return
    if name is None:
        _print_list(rows)
        return
    for row in rows:
        _print_method(row)


def _print_list(rows: list[dict[str, Any]]) -> None:
    """One line each, and what to take if you do not know."""
    from rich.table import Table
    from rich.text import Text

    titles = {
        "score": "Scores (--score)",
        "stream adapter": "Stream adapters (score --adapt)",
        "tuning method": "Tuning methods (tune --method)",
        "tuning term": "Terms that attach to a tuning method",
    }
    for kind, title in titles.items():
        table = Table(box=None, header_style="bold", title=title, title_justify="left", padding=(0, 2, 0, 0))
        table.add_column("name", no_wrap=True)
        table.add_column("what it does")
        table.add_column("needs")
        for row in rows:
            if row["kind"] == kind:
                needs = ", ".join(need for need in row["needs"] if need not in ("similarities", "labelled images"))
                table.add_row(Text(row["name"], "cyan"), Text(row["summary"]), Text(needs, "dim"))
        out.print(table)
        out.print()
    from deltaenergy.scores.registry import DEFAULT_SCORE

    out.print(f"Not sure? Scores: start with {DEFAULT_SCORE}, the default; `deltaenergy choose --id DIR` ranks them on")
    out.print(f"your own classes. Tuning: {_default_method()} is the default; docs/tuning.md says when to take which.")
    out.print("`deltaenergy methods NAME` shows formula, settings, presets and paper.")


def _default_method() -> str:
    from deltaenergy.tuning.tune import tune

    return str(inspect.signature(tune).parameters["method"].default)


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
