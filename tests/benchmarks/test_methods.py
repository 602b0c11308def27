"""The spelling of methods: scores, tuner/score, and products of both."""

from __future__ import annotations

import pytest

from deltaenergy.benchmarks.methods import Method, parse_methods
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
