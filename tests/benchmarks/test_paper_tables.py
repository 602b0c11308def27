"""The paper's figures as data: whole rows, known methods, and every average that does not add up is marked."""

from __future__ import annotations

from statistics import fmean

import pytest

from deltaenergy.benchmarks.spec import benchmark_names, load_spec
from deltaenergy.benchmarks.tables import Table, paper_table, paper_tables


@pytest.fixture(params=paper_tables())
def table(request: pytest.FixtureRequest) -> Table:
    return paper_table(request.param)


def test_every_row_has_a_value_per_column(table: Table) -> None:
    for row in table.rows:
        assert len(row.printed) == len(table.columns), row.label
    assert len({row.label for row in table.rows}) == len(table.rows)


def test_columns_select_what_the_benchmark_measures(table: Table) -> None:
    assert table.benchmark in benchmark_names()
    spec = load_spec(table.benchmark)
    for column in table.columns:
        if column.mean_of or table.benchmark == "cost":
            continue
        cases = [case for case in spec.cases if column.case in {None, case.group}]
        assert cases, column
        for case in cases:
            kinds, names = {s.kind for s in case.closed}, {s.name for s in case.closed}
            assert column.closed is None or column.closed in kinds
            assert column.set is None or column.set in names
            assert column.open is None or column.open in {s.name for s in case.open}


def test_marks_point_at_figures_of_the_table(table: Table) -> None:
    rows, columns = {row.label for row in table.rows}, {column.label for column in table.columns}
    for mark in table.marks:
        assert mark.row in rows
        assert mark.column in columns


def test_averages_that_do_not_add_up_are_marked_and_no_others(table: Table) -> None:
    wrong = set()
    for row in table.rows:
        for i, column in enumerate(table.columns):
            if column.mean_of is None:
                continue
            parts = [
                row.printed[j]
                for j, other in enumerate(table.columns)
                if other.mean_of is None and other.averaged and other.metric == column.mean_of
            ]
            # Printed digits: one unit of the last one may come from rounding the parts.
            unit = 0.1 if table.benchmark in {"setup2", "clip-11"} else 0.01
            if abs(fmean(parts) - row.printed[i]) > 1.001 * unit:
                wrong.add((row.label, column.label))
    marked = {(mark.row, mark.column) for mark in table.marks if "mean of the row" in mark.text}
    assert wrong == marked


def test_known_inconsistencies_are_marked() -> None:
    marks = {name: {(m.row, m.column) for m in paper_table(name).marks} for name in paper_tables()}
    assert ("ΔEnergy", "VLCS vs Food101, FPR95") in marks["setup2-scores"]
    assert ("ZS CLIP + ΔEnergy", "VLCS vs Food101, FPR95") in marks["setup2-tuning"]
    assert ("MSP", "Split-1, AUROC") in marks["hard-splits"]
    assert ("c = 1", "ID, AUROC") in marks["ablation-c"]
