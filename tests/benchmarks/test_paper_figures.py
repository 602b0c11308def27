"""Every typed figure stands in the paper, and in its place.

`paper_figures.json` holds all numbers of each of its tables, as printed, and `paper_lines.json` those of each line, in
order. Both were drawn from the tables' sources by programs, and the typed tables by hand; neither from the other.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import paper_table, paper_tables

PRINTED = json.loads(Path(__file__).with_name("paper_figures.json").read_text(encoding="utf-8"))
LINES = json.loads(Path(__file__).with_name("paper_lines.json").read_text(encoding="utf-8"))
# In these tables of the paper a method is a column, not a line.
TURNED = {"setup1-scores", "setup1-tuning"}
# The paper prints these times in minutes, the table holds seconds.
MINUTES = {1080.0: 18.0, 1500.0: 25.0, 8400.0: 140.0}


def typed(name: str) -> Counter[float]:
    figures = (value for row in paper_table(name).rows for value in row.printed if value is not None)
    return Counter(MINUTES.get(float(v), float(v)) if name == "cost" else float(v) for v in figures)


@pytest.mark.parametrize("name", paper_tables())
def test_every_typed_figure_is_printed_as_often(name: str) -> None:
    printed = Counter({float(figure): count for figure, count in PRINTED[name].items()})
    lacking = typed(name) - printed
    assert not lacking, f"{name}: typed but not printed: {dict(lacking)}"


def readings(name: str, rows: list[list[float | None]]) -> list[list[float]]:
    """Typed rows as the paper's lines read: turned where it is, and of the ablation the pairs of all c in one line."""
    if name in TURNED:
        rows = [list(column) for column in zip(*rows, strict=True)]
    elif name == "ablation-c":
        rows = [[value for row in rows for value in row[i : i + 2]] for i in (0, 2)]
    figures = [[float(value) for value in row if value is not None] for row in rows]
    return [[MINUTES.get(value, value) for value in row] for row in figures] if name == "cost" else figures


def stands_in(figures: list[float], line: list[float]) -> bool:
    """Whether the figures stand in the line in this order, whatever else does."""
    rest = iter(line)
    return all(any(figure == other for other in rest) for figure in figures)


def in_place(name: str, rows: list[list[float | None]]) -> bool:
    """Whether every reading stands in a line of its own, line after line."""
    lines = iter(LINES[name])
    return all(any(stands_in(reading, line) for line in lines) for reading in readings(name, rows))


@pytest.mark.parametrize("name", paper_tables())
def test_every_typed_figure_stands_in_its_place(name: str) -> None:
    assert in_place(name, [list(row.printed) for row in paper_table(name).rows])


@pytest.mark.parametrize("name", paper_tables())
def test_two_figures_in_each_others_place_are_noticed(name: str) -> None:
    rows = [list(row.printed) for row in paper_table(name).rows]
    places = [(i, j) for i, row in enumerate(rows) for j, value in enumerate(row) if value is not None]
    swapped = 0
    for (i, j), (k, m) in itertools.pairwise(places):
        if rows[i][j] != rows[k][m]:
            rows[i][j], rows[k][m] = rows[k][m], rows[i][j]
            assert not in_place(name, rows), f"{name}: {rows[i][j]} and {rows[k][m]} are swapped"
            rows[i][j], rows[k][m] = rows[k][m], rows[i][j]
            swapped += 1
    assert swapped > len(places) / 2


def test_all_851_are_checked() -> None:
    assert sum(typed(name).total() for name in paper_tables()) == 851
    assert set(PRINTED) == set(LINES) == set(paper_tables())


def test_setup2_is_the_paper_s() -> None:
    """Domains, open sets, limits and λ0 as the paper's text gives them."""
    spec = load_spec("setup2")
    held_out = {case.group: set() for case in spec.cases}
    for case in spec.cases:
        held_out[case.group].update(case.closed[0].domains or ())
        assert [one.name for one in case.open] == ["dtd", "food101", "caltech101"]
        assert {one.per_class for one in case.open} == {100} and case.closed[0].per_class == 500
    assert held_out == {
        "pacs": {"art_painting", "cartoon", "photo", "sketch"},
        "vlcs": {"Caltech101", "LabelMe", "SUN09", "VOC2007"},
    }
    assert spec.shots == 16 and spec.seeds == (1, 2, 3) and spec.settings.tuning["ebm"].parameters == {"weight": 2}
