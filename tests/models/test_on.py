"""Where a model runs, in words: any order, one of each kind, and errors that name the wrong word."""

from __future__ import annotations

import itertools

import pytest
import torch

from deltaenergy.errors import InputError
from deltaenergy.models.on import DEVICES, PRECISIONS, WORDS, On


@pytest.mark.parametrize("words", itertools.permutations(["cuda:1", "torch", "bf16", "batch=256"]))
def test_any_order(words: tuple[str, ...]) -> None:
    assert On.of(", ".join(words)) == On("cuda:1", "torch", "bf16", 256)


def test_what_is_not_named_is_left_to_load_model() -> None:
    assert On.of("auto") == On() == On.of(On())
    assert On.of("batch=8") == On(batch=8) and not On.of("batch=8").names_a_place
    assert On.of("int8").names_a_place


def test_every_word_is_known_by_its_kind() -> None:
    for word, kind in WORDS.items():
        if kind != "batch" and (kind != "precision" or word in PRECISIONS["torch"]):
            assert getattr(On.of(word), kind) == word
    assert all(torch.device(device) for device in DEVICES if device != "auto")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("cdua", "'cdua'.*'cuda'"),
        ("cpu,openvin", "'openvin'.*'openvino'"),
        ("cpu:1", "'cpu:1'"),
        ("cuda:1000", "'cuda:1000'"),
        ("cpu,cuda", "cpu and cuda"),
        ("fp32,int8", "fp32 and int8"),
        ("batch=0", "batch"),
        ("batch=²", "batch"),
        ("batch=N", "batch"),
        ("batch=99999999999999999999", "batch"),
        ("onnx,int8", "onnx.*int8"),
        ("", "''"),
        ("cpu,", "''"),
    ],
)
def test_the_wrong_word_is_named(words: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        On.of(words)
