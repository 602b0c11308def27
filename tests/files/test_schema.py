"""Checks of records and tensors: what they refuse, and that the message says where, what, and what else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files.schema import (
    Check,
    TensorSpec,
    Where,
    anything,
    check_tensors,
    list_of,
    mapping_of,
    number,
    optional,
    path_text,
    rebuilding,
    record,
    text,
    truth,
    whole,
)

HERE = Where("a.json")
JUNK: list[Any] = [None, True, False, 0, 1, -1, 0.5, 10**400, math.nan, math.inf, "", " ", "x", "\ud800", "a\0", [], {}]


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (text(), ["x"]),
        (text(blank=True), ["", " ", "x"]),
        (text(among=["x", "y"]), ["x"]),
        (text(matching="[a-z]"), ["x"]),
        (path_text(), ["", " ", "x", "\ud800", "a\0"]),
        (whole(0), [0, 1]),
        (whole(1, 5), [1]),
        (number(), [0, 1, -1, 0.5]),
        (number(0, 1), [0, 1, 0.5]),
        (number(above=0, high=1), [1, 0.5]),
        (truth(), [True, False]),
        (optional(truth()), [None, True, False]),
        (list_of(text()), [[]]),
        (list_of(text(), least=1), []),
        (list_of(text(), length=0), [[]]),
        (mapping_of(text()), [{}]),
        (record({}), [{}]),
        (record({"a": truth()}, may_lack=["a"]), [{}]),
        (record({"a": truth()}), []),
    ],
)
def test_what_is_taken_and_what_is_refused(check: Check, good: list[Any]) -> None:
    taken = []
    for value in JUNK:
        try:
            check(value, HERE)
        except ArtifactError:
            continue
        taken.append(value)
    assert [repr(value) for value in taken] == [
        repr(value) for value in JUNK if any(repr(value) == repr(g) for g in good)
    ]
    assert len(taken) == len(good)
    anything()(object(), HERE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"keep": 1.5, "classes": ["a"]},
            r"a\.json.*keep is 1\.5",
        ),
        ({"keep": 1, "classes": ["a", 3]}, r"classes\[1\] is 3"),
        ({"keep": 1, "classes": []}, "classes is a list of 0"),
        ({"keep": 1}, "the entry 'classes' is missing"),
        ({"keep": 1, "classes": ["a"], "x": 1}, "entry 'x'"),
        ({"keep": None, "classes": ["a"]}, "keep is null"),
        ([1, 2], "content is a list of 2"),
        (
            {"keep": 1, "classes": ["a"], "score": {"tau": True}},
            r"score\.tau is true",
        ),
    ],
)
def test_messages_name_file_entry_found_and_expected(value: Any, message: str) -> None:
    check = record(
        {
            "keep": number(above=0, high=1),
            "classes": list_of(text(), least=1),
            "score": record({"tau": number()}),
        },
        may_lack=["score"],
    )
    with pytest.raises(ArtifactError, match=message):
        check(value, HERE)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ArtifactError) as caught:
        whole(0)("x" * 10_000, HERE)
    assert len(str(caught.value)) < 200


GOOD = torch.tensor([[0.0, 1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (GOOD.double(), r"'t' is float64.*float32"),
        (GOOD[0], r"shape \(2,\)"),
        (GOOD[:, :1], r"shape \(2, 1\)"),
        (GOOD[None], r"shape \(1, 2, 2\)"),
        (torch.tensor([[0.0, math.nan]]), r"NaN or infinite"),
        (torch.tensor([[math.inf, -math.inf]]), r"NaN or infinite"),
        (GOOD + 1, r"from 1 to 4.*from 0 to 3"),
        (GOOD - 1, r"from -1 to 2"),
        (GOOD.flip(0), "ascending"),
    ],
)
def test_tensors_that_are_refused(tensor: torch.Tensor, message: str) -> None:
    spec = TensorSpec((None, 2), ("float32",), ascending=True, low=0, high=3)
    spec.check(GOOD, Where("f", "t"))
    spec.check(torch.zeros(0, 2), Where("f", "t"))
    with pytest.raises(ArtifactError, match=message):
        spec.check(tensor, Where("f", "t"))


def test_the_set_of_tensors_is_checked() -> None:
    specs = {"a": TensorSpec((2, 2))}
    check_tensors({"a": GOOD}, specs, "f")
    check_tensors({"a": GOOD, "more.x": GOOD, "more.n": torch.tensor(3)}, specs, "f", prefixes=("more.",))
    with pytest.raises(ArtifactError, match="'a' is missing"):
        check_tensors({}, specs, "f")
    with pytest.raises(ArtifactError, match=r"'more\.x' is not known"):
        check_tensors({"a": GOOD, "more.x": GOOD}, specs, "f")
    with pytest.raises(ArtifactError, match=r"'more\.x' is NaN"):
        check_tensors({"a": GOOD, "more.x": GOOD * math.nan}, specs, "f", prefixes=("more.",))


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("x"), TypeError("x"), InputError("x"), IndexError("x"), ArtifactError("x")]
)
def test_what_parts_refuse_names_the_file(error: Exception) -> None:
    with pytest.raises(ArtifactError, match=r"^folder: .*x"), rebuilding("folder", "the score"):
        raise error
    with pytest.raises(KeyboardInterrupt), rebuilding("folder", "the score"):
        raise KeyboardInterrupt
