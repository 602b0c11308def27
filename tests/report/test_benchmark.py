"""The benchmark report: whole HTML, every part of it, nothing loaded from elsewhere, nothing unescaped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.errors import InputError
from deltaenergy.report.benchmark import benchmark_page, c_of
from tests.benchmarks.small import small_spec
from tests.report.checks import check_page

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
    with pytest.raises(InputError, match="holds no finished benchmark"):
        benchmark_page(Results(tmp_path))
    with pytest.raises(InputError, match="is not a folder"):
        benchmark_page(Results(tmp_path / "missing"))
