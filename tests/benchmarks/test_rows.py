"""Rows of a benchmark: how scores, tuner/score and products are spelt, and those of the paper's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.rows import BenchmarkRow, chosen_rows, paper_rows, parse_rows
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from tests.benchmarks.small import small_spec

TUNED = {
    "setup1": {"coop", "cocoop", "clip-adapter", "bayes-cal", "dplclip", "croft", "locoop", "negprompt", "gallop"},
    "setup2": {"coop", "cocoop", "clip-adapter", "bayes-cal", "dplclip", "croft", "locoop", "negprompt", "gallop"},
    "conventional": {"negprompt", "id-like", "locoop", "lsn", "gallop"},
    "clip-11": {"coop", "cocoop", "maple", "plot++", "promptsrc"},
}


def labels(*texts: str) -> list[str]:
    return [method.label for method in parse_rows(texts)]


def test_scores_and_tuners() -> None:
    assert labels("msp,delta-energy(c=1,tau=1)") == ["msp", "delta-energy(tau=1,c=1)"]
    assert parse_rows(["coop/mcm"]) == [BenchmarkRow("coop", "mcm")]
    assert parse_rows(["zero-shot/mcm"]) == parse_rows(["mcm"])


def test_products() -> None:
    assert labels("{coop,ebm}/{mcm,delta-energy(c=1,tau=1)}, msp") == [
        "coop/mcm",
        "coop/delta-energy(tau=1,c=1)",
        "coop+ebm/mcm",
        "coop+ebm/delta-energy(tau=1,c=1)",
        "msp",
    ]


def test_a_tuner_alone_takes_its_papers_score() -> None:
    assert labels("coop", "ebm", "locoop") == ["coop/mcm", "coop+ebm/delta-energy", "locoop/gl-mcm"]
    assert labels("lsn", "lsn(positives=cocoop)") == ["lsn/lsn", "lsn(positives=cocoop)/lsn"]


def test_doubles_are_dropped() -> None:
    assert labels("msp,msp", "zero-shot/msp") == ["msp"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("delta-enrgy", "Did you mean 'delta-energy'"),
        ("cop/msp", "Did you mean 'coop'"),
        ("coop/mcn", "Did you mean 'mcm'"),
        ("coop/", "not of the form"),
        (" , ", "`methods` is empty"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_rows([text])


def test_a_benchmarks_settings_hold_where_the_text_does_not_say_otherwise() -> None:
    settings = {"ebm": {"weight": 2}, "coop": {"context_length": 4}}

    def tuners(text: str) -> list[str | None]:
        return [method.tuner for method in parse_rows([text], settings)]

    assert tuners("ebm/mcm") == ["coop+ebm(weight=2)"]
    assert tuners("ebm(p=0.5)") == ["coop+ebm(weight=2,p=0.5)"]
    assert tuners("ebm(weight=1)/mcm") == ["coop+ebm"]
    assert tuners("{coop,cocoop+ebm,zero-shot}/mcm") == ["coop(context_length=4)", "cocoop+ebm(weight=2)", None]
    assert tuners("mcm") == [None]


def test_setup2_tunes_ebm_with_the_papers_weight_and_finds_its_rows() -> None:
    """The paper: "we set λ0 = 2 for Setup-II", and a grid without 2 for Setup-I, which keeps the default."""
    for name, tuner in (("setup2", "coop+ebm(weight=2)"), ("setup1", "coop+ebm")):
        [method] = parse_rows(["ebm/delta-energy"], load_spec(name).settings)
        assert method.tuner == tuner
        assert method.label in {row.method for row in paper_table(f"{name}-tuning").rows}
    from deltaenergy.classifiers.ebm import Ebm

    assert 2.0 in Ebm.grid["weight"]


@pytest.mark.parametrize("name", TUNED)
def test_the_rows_name_every_method_that_the_paper_compares_with(name: str) -> None:
    methods = chosen_rows(load_spec(name), ["paper"])
    tuners = {make_method(method.tuner).name for method in methods if method.tuner}
    assert tuners == TUNED[name]
    assert any(method.tuner and "+ebm" in method.tuner for method in methods) == (name != "conventional")


def test_rows_stand_beside_other_methods_without_doubles() -> None:
    spec = load_spec("setup2")
    labels = [method.label for method in chosen_rows(spec, ["task-res/mcm,paper", "mcm"])]
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
        chosen_rows(small_spec(), ["paper"])


def test_every_row_runs_on_a_vision_transformer(tiny_clip: Any, tmp_path: Path) -> None:
    tables = ("setup1-tuning", "setup2-tuning", "conventional", "clip-11")
    spec = replace(small_spec(("epochs: 2", "epochs: 1")), tables=tables)
    tuned = [method.label for method in chosen_rows(spec, ["paper"]) if method.tuner]
    # Few crops of drawn pictures, so that the test is short.
    tuned = [label.replace("id-like/", "id-like(crops=4,selected=1)/") for label in tuned]
    summary = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=tuned, seeds=[1])
    assert [skip.what for skip in summary.skips] == []
    assert {cell.identity["method"] for cell in Results(tmp_path).cells()} == set(tuned)
