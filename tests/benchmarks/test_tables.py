"""Tables: means over closed sets, cases and seeds as by hand, intervals over seeds, and three formats."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

import pytest

from deltaenergy.benchmarks.results import Cell
from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import (
    Value,
    latex,
    markdown,
    measured_table,
    own_table,
    paper_table,
    paper_tables,
    summarise,
)


def cell(
    method: str,
    case: str,
    seed: int | None,
    rows: list[tuple[str, str, str | None, str, float]],
    group: str | None = None,
) -> Cell:
    identity = {"method": method, "case": case, "group": group or case.split("/")[0], "seed": seed}
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
    domains = ("art_painting", "cartoon", "photo", "sketch")
    pacs = [cell("mcm", f"pacs/{domain}", None, [detection(0.9, name) for name in opens]) for domain in domains]
    mean_of = lambda cells: measured_table(paper_table("setup2-scores"), cells).rows[6].measured[-2]  # noqa: E731
    assert paper_table("setup2-scores").rows[6].method == "mcm"
    assert mean_of(pacs) is None
    others = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    vlcs = [cell("mcm", f"vlcs/{domain}", None, [detection(0.5, name) for name in opens]) for domain in others]
    assert mean_of(pacs + vlcs) == Value(pytest.approx(0.7), None, 1)
    # Three of four domains are a part, and so is a data set of which images are missing.
    assert mean_of(pacs + vlcs[1:]) is None
    table = measured_table(paper_table("setup2-scores"), pacs + vlcs, partial={"dtd": "240 of 5,640 images"})
    assert table.rows[6].measured[-2] is None


def test_a_part_is_named_and_no_figure_of_the_paper_stands_beside_it() -> None:
    domains = ("art_painting", "cartoon", "photo", "sketch")
    cells = [
        cell("mcm", f"pacs/{domain}", None, [detection(0.9), detection(0.8, "food101")]) for domain in domains[:3]
    ] + [cell("mcm", "pacs/sketch", None, [detection(0.5)])]
    whole = markdown(measured_table(paper_table("setup2-scores"), cells))
    assert "| MCM | 80.0 (98.9) | 80.0 [a] |" in whole
    assert "- [a] measured on a part: pacs/art_painting, pacs/cartoon, pacs/photo (3 of 4 sets)." in whole
    some = markdown(measured_table(paper_table("setup2-scores"), cells, partial={"dtd": "240 of 5,640 images"}))
    assert "| MCM | 80.0 [a] | 80.0 [b] |" in some and "(98.9)" not in some
    assert "- [a] measured on a part: dtd: 240 of 5,640 images." in some
    quick = markdown(measured_table(paper_table("setup2-scores"), cells, limit=7))
    assert "(98.9)" not in quick and "at most 7 images of each set" in quick


@pytest.mark.parametrize("name", [name for name in paper_tables() if paper_table(name).benchmark != "cost"])
def test_everything_that_a_benchmark_measures_is_the_whole(name: str) -> None:
    """Cells with every set of every case, as the runner writes them: no figure is of a part."""
    table = paper_table(name)
    rows_of: dict[str, list[tuple[str, str, str | None, str, float]]] = {}
    for case in load_spec(table.benchmark).cases:
        rows = rows_of.setdefault(case.name, [])
        for images in case.closed:
            rows.append((images.name, images.kind, None, "accuracy", 0.5))
            for other in case.open if not images.own_classes else ():
                rows += [(images.name, images.kind, other.name, metric, 0.5) for metric in ("auroc", "fpr95")]
    method = table.rows[0].method
    cells = [cell(method, case.name, 1, rows_of[case.name], case.group) for case in load_spec(table.benchmark).cases]
    found = measured_table(table, cells)
    assert all(value is not None and not value.part for value in found.rows[0].measured)
    first = cells[0].rows[0]["closed"]
    fewer = measured_table(
        table, [replace(cells[0], rows=[row for row in cells[0].rows if row["closed"] != first]), *cells[1:]]
    )
    assert any(value is None or value.part for value in fewer.rows[0].measured)


def test_a_seed_with_unfinished_cases_is_left_out() -> None:
    cells = [
        cell("coop/mcm", "pacs/photo", 1, [detection(0.9)]),
        cell("coop/mcm", "pacs/sketch", 1, [detection(0.5)]),
        cell("coop/mcm", "pacs/photo", 2, [detection(0.9)]),
    ]
    row = next(row for row in measured_table(paper_table("setup2-tuning"), cells).rows if row.label == "CoOp")
    assert row.measured[1] == Value(pytest.approx(0.7), None, 1, "pacs/photo, pacs/sketch (2 of 4 sets)")


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
