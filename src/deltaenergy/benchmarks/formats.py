"""Tables as text: Markdown for a page, LaTeX (booktabs) for a paper. The paper's numbers are in parentheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deltaenergy.benchmarks.tables import HIGHER_IS_BETTER, SHARES, Column, Row, Table, Value

ABSENT = "–"


def number(value: Value | None, column: Column, plus_minus: str = "±") -> str:
    """A measured value as it is printed: shares in percent, other values with three digits."""
    if value is None:
        return ABSENT
    factor = 100 if column.metric in SHARES else 1
    text = _digits(factor * value.mean, column)
    return text if value.half_width is None else f"{text} {plus_minus} {_digits(factor * value.half_width, column)}"


def printed(row: Row, position: int, column: Column) -> str | None:
    """The paper's number, unless only a part of the data was measured."""
    value, measured = row.printed[position], row.measured[position]
    return None if value is None or (measured is not None and measured.part) else _digits(value, column)


def parts(table: Table) -> list[str]:
    """The parts of the data behind the table's numbers, in order of appearance."""
    return list(dict.fromkeys(value.part for row in table.rows for value in row.measured if value and value.part))


def part_letter(table: Table, value: Value | None) -> str | None:
    """The letter of the note on a number from a part of the data; None for the whole."""
    if value is None or not value.part:
        return None
    return _letter(parts(table).index(value.part))


def best_rows(table: Table, position: int) -> set[int]:
    """The rows whose measured value is best as printed, so all ties are marked."""
    column = table.columns[position]
    means = [(i, row.measured[position]) for i, row in enumerate(table.rows)]
    shown = {i: round(100 * value.mean, 1) for i, value in means if value is not None}
    # Numbers from different parts of the data cannot be compared.
    if len(shown) < 2 or len({value.part for _, value in means if value is not None}) > 1:
        return set()
    best = (max if column.metric in HIGHER_IS_BETTER else min)(shown.values())
    return {i for i, value in shown.items() if value == best}


def measured_part(table: Table, *, unmeasured_rows: bool = False) -> tuple[Table, list[str]]:
    """The table without columns and rows that were not measured, and the labels of those columns."""
    kept = [i for i in range(len(table.columns)) if any(row.measured[i] is not None for row in table.rows)]
    left_out = [column.label for i, column in enumerate(table.columns) if i not in kept]
    rows = tuple(
        replace(
            row,
            measured=tuple(row.measured[i] for i in kept),
            printed=tuple(row.printed[i] for i in kept),
        )
        for row in table.rows
        if unmeasured_rows or any(row.measured)
    )
    columns = tuple(table.columns[i] for i in kept)
    shown = {(row.label, column.label) for row in rows for column in columns}
    marks = tuple(mark for mark in table.marks if (mark.row, mark.column) in shown)
    return replace(table, columns=columns, rows=rows, marks=marks), left_out


def mark_number(table: Table, row: Row, column: Column) -> int | None:
    """The number of the note on this number of the paper, from 1."""
    marked = ((mark.row, mark.column) for mark in table.marks)
    return next((i for i, place in enumerate(marked, start=1) if place == (row.label, column.label)), None)


def heading(table: Table) -> str:
    """The text above the table."""
    if not table.label:
        return table.title
    shown = any(printed(row, i, column) for row in table.rows for i, column in enumerate(table.columns))
    said = f"the paper's {table.label} in parentheses" if shown else f"as the paper's {table.label}"
    return f"{table.title} ({said})"


def notes(table: Table, left_out: Sequence[str]) -> list[str]:
    """The notes below the table."""
    lines = [f"[{i}] {mark.row}, {mark.column}: {mark.text}." for i, mark in enumerate(table.marks, start=1)]
    lines += [f"[{_letter(i)}] measured on a part: {text}." for i, text in enumerate(parts(table))]
    lines += table.notes
    if left_out:
        lines.append(f"Not measured here: {'; '.join(left_out)}.")
    return lines


def markdown(table: Table) -> str:
    """A Markdown table, with notes."""
    table, left_out = measured_part(table)
    lines = [f"**{heading(table)}**", ""]
    lines.append("| method | " + " | ".join(column.label for column in table.columns) + " |")
    lines.append("|---|" + "---:|" * len(table.columns))
    best = [best_rows(table, i) for i in range(len(table.columns))]
    for n, row in enumerate(table.rows):
        cells = []
        for i, column in enumerate(table.columns):
            text = number(row.measured[i], column)
            cells.append(beside(f"**{text}**" if n in best[i] else text, table, row, i))
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    lines += ["", *(f"- {note}" for note in notes(table, left_out))]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """A LaTeX table for booktabs."""
    table, left_out = measured_part(table)
    best = [best_rows(table, i) for i in range(len(table.columns))]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(heading(table))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *(_escaped(column.label) for column in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for n, row in enumerate(table.rows):
        cells = [_escaped(row.label)]
        for i, column in enumerate(table.columns):
            text = number(row.measured[i], column, r"$\pm$").replace(ABSENT, "--")
            cells.append(beside(rf"\textbf{{{text}}}" if n in best[i] else text, table, row, i))
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"% {_escaped(note)}" for note in notes(table, left_out)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def cell(table: Table, row: Row, position: int) -> str:
    """A measured number followed by the paper's, as plain text."""
    return beside(number(row.measured[position], table.columns[position]), table, row, position)


def beside(text: str, table: Table, row: Row, position: int) -> str:
    """A measured number followed by the paper's and its note."""
    column = table.columns[position]
    paper = printed(row, position, column)
    mark, letter = mark_number(table, row, column), part_letter(table, row.measured[position])
    text = f"{text} [{letter}]" if letter else text
    return text if paper is None else f"{text} ({paper}{f' [{mark}]' if mark else ''})"


def _letter(position: int) -> str:
    """a, b, …, z, aa, ab, …"""
    return ("" if position < 26 else _letter(position // 26 - 1)) + chr(ord("a") + position % 26)


def _digits(value: float, column: Column) -> str:
    return f"{value:.1f}" if column.metric in SHARES else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _escaped(text: str) -> str:
    special = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "Δ": r"$\Delta$", "τ": r"$\tau$", "–": "--", "−": "$-$"}
    return "".join(special.get(letter, letter) for letter in text)
