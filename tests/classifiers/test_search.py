"""What a search tries: every combination of the grids, and never another value for a parameter that was given."""

from __future__ import annotations

import dataclasses

import pytest

from deltaenergy.classifiers.methods import make_method


def searched(spec: str, classes: int = 400) -> list[str]:
    return [method.spec for method in make_method(spec).candidates(classes)]


def test_a_given_value_stays_even_if_it_is_the_default() -> None:
    assert searched("ebm(weight=1)") == [f"coop+ebm(p={p})" for p in (0.4, 0.5)] + ["coop+ebm"]
    assert searched("ebm(weight=2,p=0.5)") == ["coop+ebm(weight=2,p=0.5)"]
    assert len(searched("ebm")) == 12
    assert searched("locoop(weight=0.25)") == ["locoop(top_k=100)", "locoop(top_k=200)"]


def test_a_preset_is_given_as_well() -> None:
    assert searched("promptsrc:fine-grained") == ["promptsrc:fine-grained"]


def test_other_grids_are_tried_instead_and_several_are_joined() -> None:
    grids = ({"ratio": [0.2], "text_ratio": [0.5, 0.0]}, {"ratio": [0.5], "text_ratio": [0.0]})
    croft = dataclasses.replace(make_method("croft(lambda1=1)"), grids=grids)
    found = [(one.params["ratio"], one.params["text_ratio"]) for one in croft.candidates(5)]
    assert found == [(0.2, 0.5), (0.2, 0.0), (0.5, 0.0)]
    assert all(one.params["lambda1"] == 1 for one in croft.candidates(5))


def test_no_grid_is_the_method_itself() -> None:
    assert searched("gallop") == ["gallop"]


@pytest.mark.parametrize("spec", ["ebm(weight=1)", "croft", "coop+ebm(p=0.5)"])
def test_what_was_given_is_no_part_of_what_a_method_is(spec: str) -> None:
    method = make_method(spec)
    assert make_method(method.spec) == method
    assert hash(make_method(method.spec)) == hash(method)
