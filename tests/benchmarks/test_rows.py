"""`--methods paper`: every row of the paper's tables is a method that can be run, with the score it is tested with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.rows import chosen_methods, paper_rows
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from tests.benchmarks.small import small_spec

TUNED = {
    "setup1": {"coop", "cocoop", "clip-adapter", "bayes-cal", "dplclip", "croft", "locoop", "negprompt", "gallop"},
    "setup2": {"coop", "cocoop", "clip-adapter", "bayes-cal", "dplclip", "croft", "locoop", "negprompt", "gallop"},
    "conventional": {"negprompt", "id-like", "locoop", "lsn", "gallop"},
    "clip-11": {"coop", "cocoop", "maple", "plot++", "promptsrc"},
}


@pytest.mark.parametrize("name", TUNED)
def test_the_rows_name_every_method_that_the_paper_compares_with(name: str) -> None:
    methods = chosen_methods(load_spec(name), ["paper"])
    tuners = {make_method(method.tuner).name for method in methods if method.tuner}
    assert tuners == TUNED[name]
    assert any(method.tuner and "+ebm" in method.tuner for method in methods) == (name != "conventional")


def test_rows_stand_beside_other_methods_without_doubles() -> None:
    spec = load_spec("setup2")
    labels = [method.label for method in chosen_methods(spec, ["task-res/mcm,paper", "mcm"])]
    assert labels[0] == "task-res/mcm"
    assert len(labels) == len(set(labels)) == 1 + len(paper_rows(spec))


def test_own_scores_are_those_of_the_papers_tables() -> None:
    rows = {name: paper_rows(load_spec(name)) for name in TUNED}
    assert {"negprompt/negprompt(local=true)", "gallop/gallop", "locoop/gl-mcm", "croft/mcm"} <= set(rows["setup1"])
    assert {"negprompt/negprompt", "id-like/id-like", "lsn/lsn", "lsn(positives=cocoop)/lsn"} <= set(
        rows["conventional"]
    )


def test_a_benchmark_without_a_table_says_so() -> None:
    with pytest.raises(InputError, match="no table of small"):
        chosen_methods(small_spec(), ["paper"])


def test_every_row_runs_on_a_vision_transformer(tiny_clip: Any, tmp_path: Path) -> None:
    tables = ("setup1-tuning", "setup2-tuning", "conventional", "clip-11")
    spec = replace(small_spec(("epochs: 2", "epochs: 1")), tables=tables)
    tuned = [method.label for method in chosen_methods(spec, ["paper"]) if method.tuner]
    # Few crops of drawn pictures, so that the test is short.
    tuned = [label.replace("id-like/", "id-like(crops=4,selected=1)/") for label in tuned]
    summary = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=tuned, seeds=[1])
    assert [skip.what for skip in summary.skips] == []
    assert {cell.identity["method"] for cell in Results(tmp_path).cells()} == set(tuned)
