"""Rows of a benchmark: how scores, tuner/score and products are spelt, and those of the paper's tables."""

from __future__ import annotations

import pytest

from deltaenergy.benchmarks.rows import chosen_rows, paper_rows, parse_rows, with_labels
from deltaenergy.benchmarks.spec import RowSettings, load_spec, parse_spec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from tests.benchmarks.small import TEXT, small_spec

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
    (row,) = parse_rows(["coop/mcm"])
    assert (row.tuner, row.score, row.label) == ("coop", "mcm", "coop/mcm")
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


def settings(text: str) -> RowSettings:
    """Those of a benchmark whose YAML text ends in `text`."""
    return parse_spec(f"{TEXT}\n{text}", "small", "small.yaml").settings


def test_a_benchmarks_settings_hold_where_the_text_does_not_say_otherwise() -> None:
    table = settings(
        "tuning: {ebm: {parameters: {weight: 2}}, coop: {parameters: {context_length: 4}}, promptsrc: "
        "{parameters: {gpa: [0.5, 0.5], text_weight: 1}}}\nscores: {mcm: {parameters: {temperature: 2}}}"
    )

    def labels(text: str) -> list[str]:
        return [row.label for row in parse_rows([text], table)]

    assert labels("ebm/msp") == ["coop(context_length=4)+ebm(weight=2)/msp"]
    assert labels("ebm(p=0.5)/msp") == ["coop(context_length=4)+ebm(weight=2,p=0.5)/msp"]
    assert labels("coop(context_length=16)+ebm(weight=1)/msp") == ["coop+ebm/msp"]
    assert labels("{cocoop+ebm,zero-shot}/mcm") == ["cocoop+ebm(weight=2)/mcm(temperature=2)", "mcm(temperature=2)"]
    assert labels("mcm(temperature=1)") == ["mcm"]
    # What a preset says was typed as well.
    assert labels("promptsrc:fine-grained/msp") == ["promptsrc:fine-grained(text_weight=1)/msp"]


def test_a_table_gives_grids_a_recipe_and_prompts() -> None:
    table = settings(
        "tuning: {ebm: {grid: {weight: [1, 2], p: [0.4]}, recipe: {epochs: 5}}, coop: {recipe: {lr: 0.1, epochs: 3}}}\n"
        'scores: {neglabel: {templates: ["the nice {}"]}}'
    )
    ebm, given, neglabel = parse_rows(["ebm/mcm", "ebm(weight=3)/mcm", "neglabel"], table)
    assert ebm.method is not None and given.method is not None
    assert [one.spec for one in ebm.method.candidates(5)] == ["coop+ebm(p=0.4)", "coop+ebm(weight=2,p=0.4)"]
    assert [one.spec for one in given.method.candidates(5)] == ["coop+ebm(weight=3,p=0.4)"]
    assert ebm.recipe == {"lr": 0.1, "epochs": 5}  # a term's goes before its method's
    assert neglabel.templates == ("the nice {}",) and ebm.templates == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tuning: {ebn: {parameters: {weight: 2}}}", "'ebn'.*'ebm'"),
        ("tuning: {ebm: {parameters: {wight: 2}}}", "'wight'.*'weight'"),
        ("tuning: {ebm: {parameters: {weight: much}}}", "weight"),
        ("tuning: {ebm: {grid: {wight: [2]}}}", "grid.*'wight'.*'weight'"),
        ("tuning: {ebm: {grid: {weight: [1, -2]}}}", "weight"),
        ("tuning: {ebm: {grid: {weight: []}}}", r"grid\.weight"),
        ("tuning: {ebm: {recipe: {epoch: 2}}}", "'epoch'.*'epochs'"),
        ("tuning: {ebm: {parameter: {weight: 2}}}", "parameter'.*'parameters'"),
        ("tuning: {mcm: {parameters: {temperature: 2}}}", "'mcm'"),
        ("scores: {neglabl: {templates: ['{}']}}", "'neglabl'.*'neglabel'"),
        ("scores: {mcm: {grid: {temperature: [1]}}}", "scores.mcm.grid"),
        ("scores: {mcm: {templates: [no place]}}", "exactly one"),
        ("protocols: {papr: {shots: 2}}", "papr'.*'paper'"),
        ("protocols: {paper: {shot: 2}}", "shot'.*'shots'"),
        ("protocols: {paper: {cases: {drwn: {tuning: {}}}}}", "'drwn'.*'drawn'"),
        ("validation: {from: trian, per_class: 4}", "validation.from"),
    ],
)
def test_a_wrong_setting_is_named_before_any_work(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen_rows(parse_spec(f"{TEXT}\n{text}", "small", "small.yaml"), None)


def test_a_case_has_settings_of_its_own_under_the_same_label() -> None:
    text = TEXT.replace(
        "    closed:\n", "    tuning: {ebm: {parameters: {p: 0.5}, recipe: {epochs: 9}}}\n    closed:\n"
    )
    spec = parse_spec(f"{text}\ntuning: {{ebm: {{parameters: {{weight: 2}}}}}}", "small", "small.yaml")
    (row,) = chosen_rows(spec, ["ebm/mcm"])
    (case,) = spec.cases
    here = row.under(case.settings)
    assert (row.label, row.recipe) == ("coop+ebm(weight=2)/mcm", {})
    assert (here.label, here.tuner, here.recipe) == (row.label, "coop+ebm(weight=2,p=0.5)", {"epochs": 9})


def test_setup2_tunes_ebm_with_the_papers_weight_and_finds_its_rows() -> None:
    """The paper: "we set λ0 = 2 for Setup-II", and a grid without 2 for Setup-I, which keeps the default."""
    for name, tuner in (("setup2", "coop+ebm(weight=2)"), ("setup1", "coop+ebm")):
        spec = load_spec(name)
        [row] = parse_rows(["ebm/delta-energy"], spec.settings)
        assert row.tuner == tuner
        table = with_labels(paper_table(f"{name}-tuning"), spec)
        assert row.label in {one.method for one in table.rows}


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
