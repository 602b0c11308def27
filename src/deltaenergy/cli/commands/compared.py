"""What `evaluate` prints of several detectors: their figures side by side, and the differences to the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.console import PlainConsole
from deltaenergy.core.text import visible

if TYPE_CHECKING:
    from deltaenergy.evaluation import Comparison


def print_comparison(comparison: Comparison) -> None:
    """One line per figure, one column per detector, and behind each the difference to the first."""
    from rich.table import Table

    from deltaenergy.evaluation.summary import GROUP_WORDS, changes, measured
    from deltaenergy.report.words import metric_name, points

    figures = {name: measured(one) for name, one in comparison.evaluations.items()}
    own = {name: changes(comparison, name) for name in figures}
    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for name in figures:
        table.add_column(visible(name), justify="right", overflow="fold")
    for column in dict.fromkeys(column for found in figures.values() for column in found):
        cells = []
        for name, found in figures.items():
            text = f"{100 * found[column].value:.1f} %" if column in found else "–"
            change = own[name].get(column)
            if change is not None:
                low, high = points(change.change.low), points(change.change.high)
                mark = "*" if change.is_clear else " "
                text += f"  {points(change.change.value)}{mark} ({low} to {high})"
            cells.append(text)
        metric, group = column
        table.add_row(f"{metric_name(metric)}, {GROUP_WORDS[group]}", *cells)
    console = common.out if common.out.is_terminal else PlainConsole(width=160)
    console.print(table)
    console.print(
        f"Differences to {visible(comparison.baseline)} in percentage points, paired 95 % intervals; * leaves out 0."
    )
