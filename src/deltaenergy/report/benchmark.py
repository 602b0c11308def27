"""The report on a results folder: results next to the paper's numbers, curves, and what was skipped."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deltaenergy.benchmarks.protocol import STANDARD, Protocol, get_protocol
from deltaenergy.benchmarks.results import Cell, Results
from deltaenergy.benchmarks.rows import with_labels
from deltaenergy.benchmarks.spec import BenchmarkSpec, benchmark_names, load_spec
from deltaenergy.benchmarks.tables import (
    METRIC_NAMES,
    Table,
    latex,
    markdown,
    measured_table,
    own_table,
    paper_table,
    printed_table,
)
from deltaenergy.classifiers.methods import list_methods
from deltaenergy.core.specs import cut, parse
from deltaenergy.errors import InputError
from deltaenergy.report.charts import (
    Curve,
    HistogramRow,
    Point,
    Scale,
    curve_chart,
    histogram_chart,
    legend,
    percent_tick,
    radar_chart,
    roc_panel,
    scatter_chart,
)
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.page import Section, definitions, figure, render_page
from deltaenergy.report.page import table as html_table
from deltaenergy.report.words import count
from deltaenergy.scores.registry import list_scores

# Readers cannot distinguish more curves than this in one chart.
MOST_CURVES = 8
MOST_HISTOGRAMS = 6
# A radar of fewer axes shows less than a table.
FEWEST_AXES = 3
# The zero-shot classifier's name in the paper's tables.
PAPERS_MODEL = "ZS CLIP"


@dataclass(frozen=True)
class BenchmarkRun:
    """All cells of one benchmark with one model, protocol and limit, and what was skipped."""

    record: dict[str, Any]
    cells: list[Cell]

    @property
    def protocol(self) -> Protocol:
        return get_protocol(self.record["protocol"])

    @functools.cached_property
    def spec(self) -> BenchmarkSpec | None:
        """The benchmark as it was run, if it is installed."""
        name = self.record["benchmark"]
        return self.protocol.applied_to(load_spec(name)) if name in benchmark_names() else None

    @property
    def title(self) -> str:
        """What distinguishes it from the other runs in the folder."""
        limit = f", at most {self.record['limit']} images per set" if self.record["limit"] else ""
        protocol = "" if self.record["protocol"] == "standard" else f", protocol {self.record['protocol']}"
        return f"{self.record['title']} — {self.record['model']['name']}{protocol}{limit}"


def benchmark_runs(results: Results) -> list[BenchmarkRun]:
    if not results.folder.is_dir():
        raise InputError(f"{results.folder} is not a folder. Results are written by `deltaenergy bench`.")
    keys = ("benchmark", "spec_hash", "protocol", "limit", "model_fingerprint")
    cells: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in results.cells():
        cells[tuple(cell.identity[key] for key in keys)].append(cell)
    runs = [BenchmarkRun(record, cells[tuple(record[key] for key in keys)]) for record in results.runs()]
    if not any(run.cells for run in runs):
        raise InputError(f"{results.folder} has no finished benchmark. Run `deltaenergy bench` first.")
    return [run for run in runs if run.cells]


def run_tables(run: BenchmarkRun) -> list[Table]:
    """The paper's tables of this benchmark with the measured numbers, or a separate table."""
    name, spec, model = run.record["benchmark"], run.spec, run.record["model"]["name"]
    missing, limit = run.record.get("partial", {}), run.record["limit"]
    tables: list[Table] = []
    if spec is not None:
        printed_tables = [with_labels(paper_table(one), spec) for one in spec.tables]
        tables = [measured_table(one, run.cells, spec, partial=missing, limit=limit) for one in printed_tables]
    tables = [table for table in tables if any(value for row in table.rows for value in row.measured)]

    def named(label: str) -> str:
        """The paper's zero-shot CLIP, under the name of the model that was used."""
        return label.replace(PAPERS_MODEL, f"Zero-shot {model}")

    tables = [
        replace(
            table,
            rows=tuple(replace(row, label=named(row.label)) for row in table.rows),
            marks=tuple(replace(mark, row=named(mark.row)) for mark in table.marks),
        )
        for table in tables
    ]
    notes: list[str] = []
    if run.record["protocol"] != STANDARD:  # what in it favours a method
        notes = [f"Protocol {run.record['protocol']}: {run.protocol.about}", *run.record.get("departures", [])]
    return [
        replace(table, notes=(*table.notes, *notes))
        for table in tables or [own_table(name, run.record["title"], run.cells)]
    ]


def benchmark_tables(results: Results, ending: str) -> str:
    """The tables as text: Markdown (.md) or LaTeX (.tex)."""
    runs = benchmark_runs(results)
    if ending == ".tex":
        return "\n".join(latex(table) for run in runs for table in run_tables(run))
    return "\n".join(f"## {run.title}\n\n" + "\n".join(map(markdown, run_tables(run))) for run in runs)


def benchmark_page(results: Results, title: str | None = None) -> str:
    runs = benchmark_runs(results)
    rows: list[list[Child]] = []
    for position, run in enumerate(runs):
        link = tag("a", run.record["benchmark"], href=f"#run-{position}")
        model, protocol, skipped = run.record["model"]["name"], run.record["protocol"], len(run.record["skipped"])
        rows.append([link, model, protocol, len(run.cells), skipped])
    columns = ["benchmark", "model", "protocol", "results", "skipped"]
    overview = html_table(columns, rows, caption="Runs in this folder", numeric=frozenset({3, 4}))
    sections = [Section("runs", "What was run", overview)]
    if radars := _radars(runs):
        sections.append(Section("radar", "All benchmarks", radars))
    for position, run in enumerate(runs):
        sections.append(Section(f"run-{position}", run.title, _body(run)))
    subtitle = f"{count(sum(len(run.cells) for run in runs), 'result')} of {count(len(runs), 'benchmark run')}"
    return render_page(title or "Benchmark report", subtitle, sections)


def _radars(runs: Sequence[BenchmarkRun]) -> list[Child]:
    """The paper's Figure 1 (C): the scores, and the tuned methods, on all benchmarks of one model and protocol."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    names: dict[str, str] = {}
    for run in runs:
        for table in run_tables(run):
            for metric in ("accuracy", "auroc"):
                positions = [i for i, one in enumerate(table.columns) if one.metric == metric and one.mean_of is None]
                axis = f"{table.label or run.record['benchmark']}, {METRIC_NAMES[metric]}"
                parts_of_axis: list[str] | None = None
                for row in table.rows:
                    found = [value for i in positions if (value := row.measured[i]) is not None]
                    # Compare methods on the same data: all of it, or the same part.
                    parts_of_axis = parts_of_axis or [value.part for value in found]
                    if found and len(found) == len(positions) and parts_of_axis == [value.part for value in found]:
                        method = bare_names(row.method)
                        key = run.record["model"]["name"], run.record["protocol"], run.record["limit"], "/" in method
                        mean = sum(value.mean for value in found) / len(found)
                        groups[key][axis][names.setdefault(method, row.label)] = mean
    parts: list[Child] = []
    for (model, protocol, _, tuned), axes in groups.items():
        shared = set.intersection(*(set(values) for values in axes.values()))
        if len(axes) < FEWEST_AXES or len(shared) < 2:
            continue
        scaled = {}
        for axis, values in axes.items():
            low, *_, high = sorted(values[name] for name in shared)
            scaled[axis] = {name: (values[name] - low) / (high - low) if high > low else 1.0 for name in shared}
        order = sorted(shared, key=lambda name: -sum(values[name] for values in scaled.values()))[:MOST_CURVES]
        what = "Tuned methods" if tuned else "Zero-shot scores"
        title = f"{what} on all benchmarks: {model}, protocol {protocol}"
        rows = {name: [scaled[axis][name] for axis in axes] for name in order}
        curves = [Curve(name, [], [], index=i) for i, name in enumerate(order)]
        cells: list[list[Child]] = [[name, *(f"{100 * axes[axis][name]:.1f}" for axis in axes)] for name in order]
        table_ = html_table(["method", *axes], cells, caption=title, numeric=frozenset(range(1, len(axes) + 1)))
        said = f"{title}. Each axis goes from the lowest value of all methods in the table (0) to the highest (1)."
        parts += [figure(join(radar_chart(list(axes), rows, title=title), legend(curves)), said), table_]
    return parts


def bare_names(label: str) -> str:
    """A row's methods without parameters, to match the row in tables with other settings."""
    known = [*list_methods(), *list_scores()]
    return "/".join("+".join(part.name for part in parse(side, "method", known)) for side in cut(label, "/", "method"))


def _body(run: BenchmarkRun) -> list[Child]:
    parts: list[Child] = [table_markup(table) for table in run_tables(run)]
    charts = [*_ablation(run), *_trade_off(run), *_pair_charts(run)]
    if charts:
        parts.append(tag("div", charts, class_="panels"))
    if run.record["skipped"]:
        rows = [[skip["case"], skip["what"], skip["reason"]] for skip in run.record["skipped"]]
        parts += [tag("h3", "Skipped"), html_table(["case", "what", "why"], rows, caption="What was not run, and why")]
    return [*parts, tag("h3", "How it was made"), definitions(_facts(run))]


def table_markup(table: Table) -> Markup:
    """A table: measured numbers with the paper's in small print, the best in bold, notes below."""
    shown = printed_table(table, unmeasured_rows=True)
    rows: list[list[Child]] = []
    for label, printed in shown.rows:
        cells: list[Child] = [label]
        for cell in printed:
            beside = tag("span", f" [{cell.part}]", class_="small") if cell.part else None
            if cell.paper is not None:
                mark = tag("sup", cell.mark) if cell.mark else None
                beside = tag("span", f" ({cell.paper}", mark, ")", class_="small")
            cells.append([tag("strong", cell.number) if cell.best else cell.number, beside])
        rows.append(cells)
    columns: list[Child] = ["method", *shown.columns]
    return tag(
        "div",
        html_table(columns, rows, caption=shown.heading, numeric=frozenset(range(1, len(columns)))),
        tag("ul", [tag("li", note) for note in shown.notes], class_="small") if shown.notes else None,
    )


def _pair_charts(run: BenchmarkRun) -> list[Markup]:
    """For each pair of sets, ROC curves; then histograms of the paper's score, or of the first method."""
    # For each case and pair of sets, the curves of each method's first seed.
    pairs: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for cell in run.cells:
        for curves in cell.curves:
            key = (cell.identity["case"], curves["closed"], curves["open"])
            pairs[key].setdefault(cell.identity["method"], curves)
    panels, charts = [], []
    for (case, closed, opened), methods in pairs.items():
        drawn = [
            Curve(method, curve["ood_kept"], curve["id_kept"], index=i)
            for i, (method, curve) in enumerate(list(methods.items())[:MOST_CURVES])
        ]
        panels.append(roc_panel(drawn, closed, opened, heading=f"ROC, {case}: {closed} vs {opened}"))
        method = "delta-energy" if "delta-energy" in methods else next(iter(methods))
        rows = [
            HistogramRow(closed, np.array(methods[method]["closed_scores"]), 0),
            HistogramRow(opened, np.array(methods[method]["open_scores"]), 1),
        ]
        title = f"{method} on {case}: {closed} and {opened}"
        charts.append(figure(histogram_chart(rows, title=title, x_label=f"{method} score"), title))
    return [*panels, *charts[:MOST_HISTOGRAMS]]


def _trade_off(run: BenchmarkRun) -> list[Markup]:
    """OOD accuracy against AUROC, one dot per method, if accuracy differs between methods."""
    by_method: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in run.cells:
        for row in cell.rows:
            if row["kind"] == "shifted":
                by_method[cell.identity["method"]][row["metric"]].append(row["value"])
    points = [
        Point(method, float(np.mean(values["accuracy"])), float(np.mean(values["auroc"])), index=i)
        for i, (method, values) in enumerate(by_method.items())
        if values["accuracy"] and values["auroc"]
    ]
    if len(points) < 2:
        return []
    chart = scatter_chart(
        points,
        Scale("accuracy on covariate-shifted closed sets", format=percent_tick),
        Scale("AUROC against open sets", format=percent_tick),
        title="OOD accuracy against AUROC",
    )
    return [figure(chart, "Trade-off: OOD accuracy against AUROC (mean over cases and seeds)")]


def _ablation(run: BenchmarkRun) -> list[Markup]:
    """AUROC of delta-energy over c, for runs that vary it."""
    table = run_tables(run)[0]
    rows = sorted(((c, row) for row in table.rows if (c := c_of(row.method))), key=lambda pair: pair[0])
    charts = []
    for i, column in enumerate(table.columns):
        points = [(c, value) for c, row in rows if (value := row.measured[i]) is not None]
        if column.metric != "auroc" or len(points) < 3:
            continue
        x, y = [float(c) for c, _ in points], [value.mean for _, value in points]
        half = [value.half_width or 0.0 for _, value in points]
        low, high = [a - b for a, b in zip(y, half)], [a + b for a, b in zip(y, half)]
        curves = [Curve("measured", x, y, low, high, index=0, markers=True)]
        paper = [(float(c), printed / 100) for c, row in rows if (printed := row.printed[i]) is not None]
        if paper and not any(value.part for _, value in points):
            curves.append(Curve("paper", [c for c, _ in paper], [v for _, v in paper], index=1, markers=True))
        auroc = Scale("AUROC", format=percent_tick)
        chart = curve_chart(curves, Scale("c", ticks=x), auroc, title=f"AUROC over c, {column.label}")
        charts.append(figure(join(chart, legend(curves)), f"ΔEnergy over c: {column.label}"))
    return charts


def c_of(method: str) -> int | None:
    """The c of `delta-energy`, `delta-energy(c=3)`; None for any other method or further changed parameters."""
    if method == "delta-energy":
        return 2
    inside = method.removeprefix("delta-energy(c=").removesuffix(")")
    return int(inside) if method.startswith("delta-energy(c=") and inside.isdigit() else None


def _facts(run: BenchmarkRun) -> dict[str, Child]:
    record, first = run.record, run.cells[0].identity
    hashes = sorted({cell.identity["classes_hash"] for cell in run.cells})
    seeds = sorted({cell.identity["seed"] for cell in run.cells} - {None})
    return {
        "model": f"{record['model']['name']}, fingerprint {record['model_fingerprint']}",
        "benchmark": f"{record['benchmark']}, specification {record['spec_hash']}",
        "class lists": ", ".join(hashes),
        "template": first["template"],
        "protocol": f"{record['protocol']}: {run.protocol.about}",
        "oracles": join(*(tag("p", text) for text in record.get("departures", []))) or "none",
        "seeds": ", ".join(map(str, seeds)) or "none needed",
        "unreadable images": len(record["unreadable"]),
        "versions": f"deltaenergy {record['deltaenergy']}, torch {first['torch']}",
    }
