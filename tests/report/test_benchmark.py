"""The benchmark report: whole HTML, every part of it, nothing loaded from elsewhere, nothing unescaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltaenergy.benchmarks.results import Cell, Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.tables import markdown
from deltaenergy.errors import InputError
from deltaenergy.report.benchmark import (
    BenchmarkRun,
    _radars,
    bare_names,
    benchmark_page,
    benchmark_runs,
    c_of,
    run_tables,
)
from deltaenergy.report.html import join
from tests.benchmarks.small import small_spec
from tests.report.checks import Page, check_page

if TYPE_CHECKING:
    from deltaenergy import Model


@pytest.fixture(scope="module")
def page(tiny_clip: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("results")
    spec = small_spec(
        ("title: Small", 'title: "Small <b>&"'),
        ("      open: {split: test", "      dtd: {dataset: dtd}\n      open: {split: test"),
    )
    methods = ["msp", "delta-energy", "delta-energy(c=1)", "delta-energy(c=3)", "react"]
    run_benchmark(spec, tiny_clip, DataRoot(), folder, methods=methods)
    return benchmark_page(Results(folder))


def test_the_page_is_whole_and_says_everything(page: str, tiny_clip: Model) -> None:
    outline = check_page(page)
    for words in ("Small <b>&", "ROC, drawn: flat vs open", "Trade-off", "ΔEnergy over c", "delta-energy on drawn"):
        assert words in outline.text, words
    # What was skipped, and what identifies the run.
    assert "open set dtd (dtd)" in outline.text
    assert tiny_clip.fingerprint in outline.text
    # react ran on two seeds: a mean with an interval.
    assert "±" in outline.text
    assert len(outline.all("svg")) > 5


def test_c_is_read_from_the_methods_spelling() -> None:
    assert [c_of(text) for text in ("delta-energy", "delta-energy(c=3)", "delta-energy(tau=1,c=3)", "msp")] == [
        2,
        3,
        None,
        None,
    ]


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished benchmark"):
        benchmark_page(Results(tmp_path))
    with pytest.raises(InputError, match="is not a folder"):
        benchmark_page(Results(tmp_path / "missing"))


def cells_of(benchmark: str, auroc: dict[str, float], *, model: str, sets: dict[str, str]) -> list[Cell]:
    """A result of each method on a case of one closed and one open set."""
    keys = ("closed", "kind", "open", "metric", "value")
    identity = {"benchmark": benchmark, "case": "c", "group": "c", "seed": None, "classes_hash": "", "template": ""}
    return [
        Cell(
            {**identity, "method": method, "model": model, "torch": ""},
            [dict(zip(keys, (name, kind, "open", "auroc", value))) for name, kind in sets.items()],
            [],
        )
        for method, value in auroc.items()
    ]


def run_of(benchmark: str, auroc: dict[str, float], protocol: str = "standard") -> BenchmarkRun:
    record = {"benchmark": benchmark, "title": benchmark, "protocol": protocol, "limit": None, "skipped": []}
    return BenchmarkRun(
        {**record, "model": {"name": "m"}, "unreadable": []},
        cells_of(benchmark, auroc, model="m", sets={"closed": "id"}),
    )


def test_the_radar_has_an_axis_for_each_benchmark_from_the_least_to_the_best() -> None:
    """Figure 1 (C). Worked by hand: of 0.6, 0.7, 0.9 the middle one is a third of the way."""
    figures = {"one": (0.6, 0.7, 0.9), "two": (0.5, 0.5, 0.5), "three": (0.9, 0.8, 0.7)}
    runs = [run_of(name, dict(zip(("msp", "mcm", "delta-energy"), values))) for name, values in figures.items()]
    page = Page(str(join(*_radars(runs))))
    (label,) = [svg["aria-label"] for svg in page.all("svg") if svg.get("role") == "img"]
    assert "one, AUROC, two, AUROC, three, AUROC" in label
    assert "mcm: 0.33, 1.00, 0.50" in label and "delta-energy: 1.00, 1.00, 0.00" in label
    assert all(text in page.text for text in ("70.0", "Zero-shot scores"))
    # Two benchmarks, or one method, are no radar; nor are methods of two protocols.
    assert _radars(runs[:2]) == []
    assert _radars([run_of(name, {"msp": values[0]}) for name, values in figures.items()]) == []
    assert _radars([*runs[:2], run_of("three", {"msp": 0.9, "mcm": 0.8}, "croft")]) == []


def test_a_method_is_the_same_in_tables_with_other_settings() -> None:
    assert bare_names("clip-adapter(alpha=0.5)/mcm") == "clip-adapter/mcm"
    assert bare_names("coop(context_init='a, b')+ebm(weight=2)/delta-energy(tau=1)") == "coop+ebm/delta-energy"
    assert bare_names("csp+delta-energy") == "csp+delta-energy"


@pytest.mark.parametrize(("protocol", "oracles"), [("standard", 0), ("paper", 0), ("croft", 2)])
def test_the_report_names_the_protocol_and_its_oracles(
    tiny_clip: Model, tmp_path: Path, protocol: str, oracles: int
) -> None:
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"], seeds=[1], protocol=protocol)
    (run,) = benchmark_runs(Results(tmp_path))
    (table,) = run_tables(run)
    page = check_page(benchmark_page(Results(tmp_path))).text
    assert f"{protocol}: {run.protocol.about}" in page
    assert sum(note.startswith("Oracle") for note in table.notes) == oracles
    assert (f"Protocol {protocol}" in markdown(table)) == (protocol != "standard")
