"""Every typed figure stands in the paper: `paper_figures.json` holds all numbers of each of its tables, as printed.

The file was drawn from the tables' sources by a program, and the typed tables by hand; neither from the other.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import paper_table, paper_tables

PRINTED = json.loads(Path(__file__).with_name("paper_figures.json").read_text(encoding="utf-8"))
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


def test_all_851_are_checked() -> None:
    assert sum(typed(name).total() for name in paper_tables()) == 851
    assert set(PRINTED) == set(paper_tables())


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
    assert spec.shots == 16 and spec.seeds == (1, 2, 3) and spec.settings["ebm"] == {"weight": 2}
