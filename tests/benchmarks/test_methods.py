"""The spelling of methods: scores, tuner/score, and products of both."""

from __future__ import annotations

import pytest

from deltaenergy.benchmarks.methods import Method, parse_methods
from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.errors import InputError


def labels(*texts: str) -> list[str]:
    return [method.label for method in parse_methods(texts)]


def test_scores_and_tuners() -> None:
    assert labels("msp,delta-energy(c=1,tau=1)") == ["msp", "delta-energy(tau=1,c=1)"]
    assert parse_methods(["coop/mcm"]) == [Method("coop", "mcm")]
    assert parse_methods(["zero-shot/mcm"]) == parse_methods(["mcm"])


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
        (" , ", "--methods is empty"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_methods([text])


def test_a_benchmarks_settings_hold_where_the_text_does_not_say_otherwise() -> None:
    settings = {"ebm": {"weight": 2}, "coop": {"context_length": 4}}

    def tuners(text: str) -> list[str | None]:
        return [method.tuner for method in parse_methods([text], settings)]

    assert tuners("ebm/mcm") == ["coop+ebm(weight=2)"]
    assert tuners("ebm(p=0.5)") == ["coop+ebm(weight=2,p=0.5)"]
    assert tuners("ebm(weight=1)/mcm") == ["coop+ebm"]
    assert tuners("{coop,cocoop+ebm,zero-shot}/mcm") == ["coop(context_length=4)", "cocoop+ebm(weight=2)", None]
    assert tuners("mcm") == [None]


def test_setup2_tunes_ebm_with_the_papers_weight_and_finds_its_rows() -> None:
    """The paper: "we set λ0 = 2 for Setup-II", and a grid without 2 for Setup-I, which keeps the default."""
    for name, tuner in (("setup2", "coop+ebm(weight=2)"), ("setup1", "coop+ebm")):
        [method] = parse_methods(["ebm/delta-energy"], load_spec(name).settings)
        assert method.tuner == tuner
        assert method.label in {row.method for row in paper_table(f"{name}-tuning").rows}
    from deltaenergy.classifiers.ebm import Ebm

    assert 2.0 in Ebm.grid["weight"]
