"""Tables: means over closed sets, cases and seeds as by hand, intervals over seeds, and three formats."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

import pytest

from deltaenergy.benchmarks.formats import latex, markdown
from deltaenergy.benchmarks.results import Cell
from deltaenergy.benchmarks.tables import Value, measured_table, own_table, paper_table, summarise


def cell(method: str, case: str, seed: int | None, rows: list[tuple[str, str, str | None, str, float]]) -> Cell:
    group = case.split("/")[0]
    identity: dict[str, Any] = {"method": method, "case": case, "group": group, "seed": seed}
    keys = ("closed", "kind", "open", "metric", "value")
    return Cell(identity, [dict(zip(keys, row)) for row in rows], [])


def detection(value: float, open_set: str = "dtd", metric: str = "auroc") -> tuple[str, str, str, str, float]:
    return ("target", "shifted", open_set, metric, value)


def test_a_columns_value_is_the_mean_over_domains_then_over_seeds() -> None:
    by_seed = {1: (0.9, 0.7), 2: (0.8, 0.6), 3: (0.6, 0.7)}
    cells = [
        cell("coop/mcm", f"pacs/{domain}", seed, [detection(value)])
        for seed, values in by_seed.items()
        for domain, value in zip(("photo", "sketch"), values)
    ]
    table = measured_table(paper_table("setup2-tuning"), cells)
    row = next(row for row in table.rows if row.label == "CoOp")
    position = next(i for i, column in enumerate(table.columns) if column.label == "PACS vs DTD, AUROC")
    means = [fmean(values) for values in by_seed.values()]
    found = row.measured[position]
    assert found is not None
    assert found.mean == pytest.approx(fmean(means))
    # Student's t with two degrees of freedom: 4.303.
    assert found.half_width == pytest.approx(4.303 * stdev(means) / 3**0.5)
    assert [value for i, value in enumerate(row.measured) if i != position] == [None] * (len(row.measured) - 1)


def test_a_mean_column_waits_for_all_its_parts() -> None:
    opens = ("dtd", "food101", "caltech101")
    pacs = [cell("mcm", "pacs/photo", None, [detection(0.9, name) for name in opens])]
    mean_of = lambda cells: measured_table(paper_table("setup2-scores"), cells).rows[6].measured[-2]  # noqa: E731
    assert paper_table("setup2-scores").rows[6].method == "mcm"
    assert mean_of(pacs) is None
    vlcs = [cell("mcm", "vlcs/VOC2007", None, [detection(0.5, name) for name in opens])]
    assert mean_of(pacs + vlcs) == Value(pytest.approx(0.7), None, 1)


def test_a_seed_with_unfinished_cases_is_left_out() -> None:
    cells = [
        cell("coop/mcm", "pacs/photo", 1, [detection(0.9)]),
        cell("coop/mcm", "pacs/sketch", 1, [detection(0.5)]),
        cell("coop/mcm", "pacs/photo", 2, [detection(0.9)]),
    ]
    row = next(row for row in measured_table(paper_table("setup2-tuning"), cells).rows if row.label == "CoOp")
    assert row.measured[1] == Value(pytest.approx(0.7), None, 1)


def test_accuracy_tables_do_not_care_for_the_score() -> None:
    cells = [cell("coop/delta-energy", "imagenet", 1, [("test", "id", None, "accuracy", 0.7)])]
    row = next(row for row in measured_table(paper_table("clip-11"), cells).rows if row.label == "CoOp")
    assert row.measured[0] == Value(0.7, None, 1)


def test_summarise() -> None:
    assert summarise([]) is None
    assert summarise([0.5]) == Value(0.5, None, 1)
    two = summarise([0.4, 0.6])
    assert two is not None
    assert two.half_width == pytest.approx(12.706 * stdev([0.4, 0.6]) / 2**0.5)


def test_markdown_shows_measured_figures_the_papers_and_its_marks() -> None:
    cells = [
        cell("delta-energy", "imagenet", seed, [("val", "id", "open", "auroc", value)])
        for seed, value in ((1, 0.8712), (2, 0.8612))
    ]
    cells += [cell("delta-energy(c=1)", "imagenet", seed, [("val", "id", "open", "auroc", 0.85)]) for seed in (1, 2)]
    text = markdown(measured_table(paper_table("ablation-c"), cells))
    assert "| method | ID, AUROC |" in text
    assert "| c = 2 | **86.6 ± 6.4** (87.1) |" in text
    assert "| c = 1 | 85.0 ± 0.0 (86.5 [1]) |" in text
    assert "- [1] c = 1, ID, AUROC: at τ = 0.01 c = 1 ranks images exactly as MSP does" in text
    assert "Not measured here: ID, FPR95; shifted, FPR95; shifted, AUROC." in text
    assert "c = 3" not in text


def test_latex_is_escaped() -> None:
    cells = [cell("my_score(a=1)", "x_y", None, [("a", "id", "o", "auroc", 0.5)])]
    text = latex(own_table("mine", "50 % & more", cells))
    assert r"50 \% \& more" in text
    assert r"my\_score(a=1) & 50.0 \\" in text
    assert text.count(r"\begin{tabular}{lr}") == 1


def test_fpr_is_better_when_lower() -> None:
    cells = [
        cell(method, "x", None, [("a", "id", "o", "fpr95", value), ("a", "id", "o", "auroc", 1 - value)])
        for method, value in (("good", 0.1), ("bad", 0.3))
    ]
    text = markdown(own_table("mine", "Mine", cells))
    assert "| good | **10.0** | **90.0** |" in text
    assert "| bad | 30.0 | 70.0 |" in text
