"""Tables as text: Markdown for a page, LaTeX (booktabs) for a paper. The paper's numbers are in parentheses."""

from __future__ import annotations

from dataclasses import dataclass

from deltaenergy.benchmarks.tables import HIGHER_IS_BETTER, SHARES, Column, Table, Value

ABSENT = "–"


@dataclass(frozen=True)
class PrintedCell:
    """A cell as text: the measured number, the letter of a note on its data, the paper's number and its note."""

    number: str
    best: bool
    part: str
    paper: str | None
    mark: int | None

    @property
    def beside(self) -> str:
        """What follows the measured number."""
        part, mark = (f" [{note}]" if note else "" for note in (self.part, self.mark))
        return part if self.paper is None else f"{part} ({self.paper}{mark})"


@dataclass(frozen=True)
class PrintedTable:
    """A table as text, without columns that were not measured."""

    heading: str
    columns: list[str]
    rows: list[tuple[str, list[PrintedCell]]]
    notes: list[str]


def printed_table(table: Table, *, unmeasured_rows: bool = False) -> PrintedTable:
    """The table's numbers as text, with letters and numbers for its notes."""
    columns = [(i, column) for i, column in enumerate(table.columns) if any(row.measured[i] for row in table.rows)]
    rows = [row for row in table.rows if unmeasured_rows or any(row.measured)]
    shown = {(row.label, column.label) for row in rows for _, column in columns}
    marks = [mark for mark in table.marks if (mark.row, mark.column) in shown]
    mark_at = {(mark.row, mark.column): number for number, mark in reversed([*enumerate(marks, start=1)])}
    parts = list(dict.fromkeys(value.part for row in rows for value in row.measured if value and value.part))
    best = {i: _best([row.measured[i] for row in rows], column) for i, column in columns}
    printed = []
    for n, row in enumerate(rows):
        cells = []
        for i, column in columns:
            value, paper = row.measured[i], row.printed[i]
            part = value.part if value else ""
            cells.append(
                PrintedCell(
                    _number(value, column),
                    n in best[i],
                    _letter(parts.index(part)) if part else "",
                    # Not comparable if only a part of the data was measured.
                    None if paper is None or part else _digits(paper, column),
                    mark_at.get((row.label, column.label)),
                )
            )
        printed.append((row.label, cells))
    heading = table.title
    if table.label:
        compared = any(cell.paper is not None for _, cells in printed for cell in cells)
        heading += f" (the paper's {table.label} in parentheses)" if compared else f" (as the paper's {table.label})"
    notes = [f"[{i}] {mark.row}, {mark.column}: {mark.text}." for i, mark in enumerate(marks, start=1)]
    notes += [f"[{_letter(i)}] measured on a part: {text}." for i, text in enumerate(parts)]
    notes += table.notes
    if left_out := [column.label for i, column in enumerate(table.columns) if i not in best]:
        notes.append(f"Not measured here: {'; '.join(left_out)}.")
    return PrintedTable(heading, [column.label for _, column in columns], printed, notes)


def _best(values: list[Value | None], column: Column) -> set[int]:
    """The rows whose measured value is best as printed, so all ties are marked."""
    shown = {i: round(100 * value.mean, 1) for i, value in enumerate(values) if value is not None}
    # Numbers from different parts of the data cannot be compared.
    if len(shown) < 2 or len({value.part for value in values if value is not None}) > 1:
        return set()
    best = (max if column.metric in HIGHER_IS_BETTER else min)(shown.values())
    return {i for i, value in shown.items() if value == best}


def markdown(table: Table) -> str:
    """A Markdown table, with notes."""
    shown = printed_table(table)
    lines = [f"**{shown.heading}**", ""]
    lines.append("| method | " + " | ".join(shown.columns) + " |")
    lines.append("|---|" + "---:|" * len(shown.columns))
    for label, cells in shown.rows:
        texts = [(f"**{cell.number}**" if cell.best else cell.number) + cell.beside for cell in cells]
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    lines += ["", *(f"- {note}" for note in shown.notes)]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """A LaTeX table for booktabs."""
    shown = printed_table(table)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(shown.heading)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(shown.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *map(_escaped, shown.columns)]) + r" \\",
        r"\midrule",
    ]
    for label, cells in shown.rows:
        numbers = [_escaped(cell.number) for cell in cells]
        texts = [rf"\textbf{{{text}}}" if cell.best else text for text, cell in zip(numbers, cells)]
        lines.append(" & ".join([_escaped(label), *(text + cell.beside for text, cell in zip(texts, cells))]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"% {_escaped(note)}" for note in shown.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _number(value: Value | None, column: Column) -> str:
    """A measured value: shares in percent, other values with three digits."""
    if value is None:
        return ABSENT
    factor = 100 if column.metric in SHARES else 1
    text = _digits(factor * value.mean, column)
    return text if value.half_width is None else f"{text} ± {_digits(factor * value.half_width, column)}"


def _digits(value: float, column: Column) -> str:
    return f"{value:.1f}" if column.metric in SHARES else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _letter(position: int) -> str:
    """a, b, …, z, aa, ab, …"""
    return ("" if position < 26 else _letter(position // 26 - 1)) + chr(ord("a") + position % 26)


_SPECIAL = {
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "Δ": r"$\Delta$", "τ": r"$\tau$", "–": "--", "−": "$-$",
    "±": r"$\pm$",
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
