"""Tables of results: measured values, averaged as in the paper, next to the paper's numbers.

A column selects rows of the results (case group, kind of closed set, open set, metric). Its value for a method is the
mean over the closed sets of each case, then over the group's cases, then over the seeds, with a t-interval over seeds:
mean ± t_{n−1, 0.975} · s / √n.

A value from a part of the paper's data (a missing domain, an incomplete dataset, a limit) names the part, is not
compared with the paper, and is not part of a mean over columns.

As text, for a page (Markdown) or a paper (LaTeX with booktabs), a table has the paper's numbers in parentheses.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from deltaenergy.benchmarks.results import Cell
from deltaenergy.benchmarks.spec import BenchmarkSpec, Case, load_spec

# 0.975 quantiles of Student's t for 1, 2, … degrees of freedom; beyond them the normal's 1.96 is near enough.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_LARGE = 1.96
HIGHER_IS_BETTER = {"accuracy", "auroc", "aupr_in", "aupr_out", "images_per_second"}
# Metrics that are shares, and shown in percent.
SHARES = {"accuracy", "auroc", "aupr_in", "aupr_out", "fpr95", "fpr95_ood"}
# A case and a closed set of it.
Source = tuple[str, str]
# Marks a method whose published numbers come from a stream that it adapted to.
SAW_STREAM = "†"
METRIC_NAMES = {"accuracy": "accuracy", "auroc": "AUROC", "fpr95": "FPR95"}


@dataclass(frozen=True)
class Column:
    """Which values of the results make up a column; `mean_of` columns average the others of that metric."""

    label: str
    metric: str
    case: str | None = None
    closed: str | None = None
    set: str | None = None
    open: str | None = None
    mean_of: str | None = None
    averaged: bool = True

    def takes(self, identity: dict[str, Any], row: dict[str, Any]) -> bool:
        """Whether a measured value belongs to the column."""
        wanted = ((self.case, identity["group"]), (self.closed, row["kind"]), (self.set, row["closed"]))
        return (
            row["metric"] == self.metric
            and row["open"] == self.open
            and all(want is None or want == have for want, have in wanted)
        )


@dataclass(frozen=True)
class Value:
    """A mean over seeds, half the width of its interval (None for a single value), and the part of the data.

    `part` is empty for the whole of what the paper's table averages.
    """

    mean: float
    half_width: float | None
    seeds: int
    part: str = ""


@dataclass(frozen=True)
class Row:
    """A method: measured and published numbers per column.

    `method` is empty if it is not implemented. `source` says where the published numbers are from, in tables of several
    papers; `saw_stream` that the method learned from the shuffled test images.
    """

    label: str
    method: str
    measured: tuple[Value | None, ...]
    printed: tuple[float | None, ...]
    source: str = ""
    saw_stream: bool = False


@dataclass(frozen=True)
class Mark:
    """An inconsistency of the paper."""

    row: str
    column: str
    text: str


@dataclass(frozen=True)
class Table:
    """A table of the paper, or one made only from results (`label` empty)."""

    label: str
    title: str
    benchmark: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()


def paper_table(name: str) -> Table:
    """A table as printed, with nothing measured yet: the paper's (`paper/`), or other papers' (`published/`)."""
    folder = resources.files("deltaenergy.benchmarks") / ("published" if name in published_tables() else "paper")
    raw = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    columns = tuple(Column(**{"metric": entry.get("mean_of"), **entry}) for entry in raw["columns"])
    empty = (None,) * len(columns)
    rows = tuple(_printed_row(entry, empty) for entry in raw["rows"])
    marks = tuple(Mark(**entry) for entry in raw.get("marks", ()))
    notes = [*raw.get("notes", ()), *(f"{row.label}: {row.source}." for row in rows if row.source)]
    if any(row.saw_stream for row in rows):
        notes.append(
            f"{SAW_STREAM} The method learned from the test images, known and unknown, shuffled into one stream."
        )
    return Table(raw["label"], raw["title"], raw["benchmark"], columns, rows, marks, tuple(notes))


def _printed_row(entry: dict[str, Any], empty: tuple[None, ...]) -> Row:
    saw_stream = entry.get("saw_stream", False)
    label = f"{entry['label']} {SAW_STREAM}" if saw_stream else entry["label"]
    return Row(label, entry.get("method", ""), empty, tuple(entry["values"]), entry.get("source", ""), saw_stream)


def paper_tables() -> list[str]:
    """The names of the paper's tables."""
    return _tables("paper")


def published_tables() -> list[str]:
    """The names of tables of other papers' numbers."""
    return _tables("published")


def _tables(folder: str) -> list[str]:
    entries = (resources.files("deltaenergy.benchmarks") / folder).iterdir()
    return sorted(Path(entry.name).stem for entry in entries if entry.name.endswith(".yaml"))


def own_table(benchmark: str, title: str, cells: Sequence[Cell]) -> Table:
    """A table of everything measured: accuracy per kind of closed set, detection per kind and open set."""
    seen: dict[Column, None] = {}
    groups = list(dict.fromkeys(cell.identity["group"] for cell in cells))
    for cell in cells:
        for row in cell.rows:
            if row["metric"] not in METRIC_NAMES:
                continue
            group = cell.identity["group"]
            place = f"{group}, " if len(groups) > 1 else ""
            against = f" vs {row['open']}" if row["open"] else ""
            label = f"{place}{row['kind']}{against}, {METRIC_NAMES[row['metric']]}"
            seen[Column(label, row["metric"], group, row["kind"], None, row["open"])] = None
    return measured_table(Table("", title, benchmark, tuple(seen), ()), cells)


def measured_table(
    table: Table,
    cells: Sequence[Cell],
    spec: BenchmarkSpec | None = None,
    *,
    partial: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Table:
    """`table` with measured values: in its own rows, and in new rows for other methods.

    Args:
        table: of the paper, or of results.
        cells: the results.
        spec: the benchmark as it was run, to know complete results; by default unchanged.
        partial: incomplete datasets, with a text on how many images they have.
        limit: maximum images per set, if there was a limit.
    """
    by_key: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        by_key[row_key(table, cell.identity["method"])][cell.identity["method"]].append(cell)
    # Only the paper's tables have numbers to compare with; costs are of any images.
    known = spec or load_spec(table.benchmark) if table.label else None
    whole = _Whole(known.cases if known is not None and known.measures != "cost" else (), partial or {}, limit)
    rows = []
    for row in table.rows:
        mine = by_key.pop(row_key(table, row.method), {})
        chosen = mine.get(row.method) or next(iter(mine.values()), [])
        rows.append(replace(row, measured=_values(table.columns, chosen, whole)))
    empty = (None,) * len(table.columns)
    for key, mine in by_key.items():
        values = _values(table.columns, next(iter(mine.values())), whole)
        if any(value is not None for value in values):
            rows.append(Row(key, key, values, empty))
    return replace(table, rows=tuple(rows))


def row_key(table: Table, method: str) -> str:
    """The key of a method's row: accuracy and a tuner's cost do not depend on the score.

    Of several methods with one key, the row gets its own, or else the first.
    """
    tuner, slash, _ = method.rpartition("/")
    if all(column.metric == "accuracy" for column in table.columns):
        return tuner if slash else "zero-shot"
    if any(column.metric == "seconds" for column in table.columns) and slash:
        return tuner
    return method


def _values(columns: Sequence[Column], cells: Sequence[Cell], whole: _Whole) -> tuple[Value | None, ...]:
    by_seed: list[dict[int | None, float]] = []
    parts: list[str] = []
    for column in columns:
        values, sources = _by_seed(column, cells) if column.mean_of is None else ({}, frozenset())
        by_seed.append(values)
        parts.append(whole.part(column, sources) if values else "")
    for position, column in enumerate(columns):
        if column.mean_of is not None:
            others = [
                i
                for i, other in enumerate(columns)
                if other.mean_of is None and other.averaged and other.metric == column.mean_of
            ]
            # A mean over fewer columns than the paper's, or over parts of its data, would not be comparable.
            found = [by_seed[i] if not parts[i] else {} for i in others]
            seeds = set.intersection(*(set(one) for one in found)) if found else set()
            by_seed[position] = {seed: fmean(one[seed] for one in found) for seed in seeds}
    summaries = [summarise(list(values.values())) for values in by_seed]
    return tuple(value and replace(value, part=part) for value, part in zip(summaries, parts))


class _Whole:
    """What the cells of a table average when nothing is missing."""

    def __init__(self, cases: Sequence[Case], partial: Mapping[str, str], limit: int | None) -> None:
        self.cases, self.partial, self.limit = cases, partial, limit

    def part(self, column: Column, sources: Collection[Source]) -> str:
        """Names the part of the data behind `sources`; empty for the whole."""
        if not self.cases:
            return ""
        sets = [
            (case, images)
            for case in self.cases
            if column.case in {None, case.group}
            and (column.open is None or any(images.name == column.open for images in case.open))
            for images in case.closed
            if column.closed in {None, images.kind}
            and column.set in {None, images.name}
            and (column.open is None or not images.own_classes)
        ]
        said = []
        there = [(case.name, images.name) for case, images in sets if (case.name, images.name) in sources]
        if len(there) < len(sets):
            several = len({images.name for _, images in sets}) > 1
            names = [f"{case}: {images}" if several else case for case, images in there]
            said.append(f"{', '.join(names)} ({len(there)} of {len(sets)} sets)")
        used = {images.dataset for case, images in sets if (case.name, images.name) in sources}
        used |= {images.dataset for case, _ in sets for images in case.open if images.name == column.open}
        said += [f"{name}: {text}" for name, text in self.partial.items() if name in used]
        if self.limit is not None:
            said.append(f"at most {self.limit:,} images of each set")
        return "; ".join(said)


def _by_seed(column: Column, cells: Iterable[Cell]) -> tuple[dict[int | None, float], frozenset[Source]]:
    """The column's value for each seed (mean over closed sets, then over cases), and its sets."""
    found: dict[int | None, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sources: dict[int | None, set[Source]] = defaultdict(set)
    for cell in cells:
        for row in cell.rows:
            if column.takes(cell.identity, row):
                seed, case = cell.identity["seed"], cell.identity["case"]
                found[seed][case].append(row["value"])
                sources[seed].add((case, row["closed"]))
    # A seed of which some sets are not finished yet would be a mean over others.
    most = max((len(sets) for sets in sources.values()), default=0)
    kept = {seed: cases for seed, cases in found.items() if len(sources[seed]) == most}
    values = {seed: fmean(map(fmean, cases.values())) for seed, cases in kept.items()}
    return values, frozenset().union(*(sources[seed] for seed in kept))


def summarise(values: Sequence[float]) -> Value | None:
    """Mean and half the 95% t-interval."""
    if not values:
        return None
    if len(values) == 1:
        return Value(values[0], None, 1)
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else _T_LARGE
    return Value(fmean(values), quantile * stdev(values) / math.sqrt(len(values)), len(values))


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
