"""Protocols: what counts, which view, and the random view's repeatability."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from deltaenergy.benchmarks.protocol import TrainView, get_protocol, in_train_view
from deltaenergy.benchmarks.spec import ValidationRule, load_spec, parse_spec
from deltaenergy.errors import InputError
from deltaenergy.models.preprocessing import Preprocessing
from tests.benchmarks.small import TEXT

if TYPE_CHECKING:
    from deltaenergy import Model


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8))


def test_a_wrong_name_suggests_the_near_one() -> None:
    for wrong, near in (("standart", "standard"), ("papers", "paper"), ("croft(as_release=true)", "croft")):
        with pytest.raises(InputError, match=f"Did you mean '{near}"):
            get_protocol(wrong)


def test_only_croft_has_oracles_and_says_which() -> None:
    spec = load_spec("setup1")
    for name in ("standard", "paper"):
        protocol = get_protocol(name)
        assert protocol.departures(protocol.applied_to(spec)) == []
        assert not (protocol.rules.correct_only or protocol.rules.open_in_train_view)
    croft = get_protocol("croft")
    assert all(vars(croft.rules).values())
    told = croft.departures(croft.applied_to(spec))
    assert len(told) == 3 and [text.startswith("Oracle") for text in told] == [True, True, False]
    # In Setup-II the release validates on source domains.
    assert len(croft.departures(croft.applied_to(load_spec("setup2")))) == 2
    released = get_protocol("croft(as_released=true)")
    assert len(released.departures(released.applied_to(load_spec("setup2")))) == 3


def test_a_benchmarks_own_words_go_before_a_protocols_and_its_section_before_both() -> None:
    text = TEXT + "protocols: {croft: {shots: 3}}\n"
    spec = parse_spec(text, "small", "small.yaml")
    paper, croft = (get_protocol(name).applied_to(spec) for name in ("paper", "croft"))
    assert (spec.template, paper.template, paper.batch_size, croft.shots) == ("a {}.", "a {}.", 100, 3)
    assert (spec.validation, paper.validation, croft.validation) == (
        ValidationRule("train", 4),
        ValidationRule("val", 4),
        ValidationRule("test", 4),
    )
    assert get_protocol("standard").applied_to(spec) == spec
    # Of a benchmark without the paper's tables, the protocol runs the benchmark's own rows.
    assert paper.methods == spec.methods and get_protocol("paper").applied_to(load_spec("setup1")).methods[0] == "paper"


def test_the_train_view_of_a_picture_is_always_the_same_and_random_between_pictures() -> None:
    view = TrainView(resize=32, crop=32)
    first = view(noise(0))
    assert first.shape == (3, 32, 32)
    view(noise(1))
    assert np.array_equal(first, view(noise(0)))
    assert not np.array_equal(first, Preprocessing(resize=32, crop=32)(noise(0)))


def test_the_view_keeps_normalisation_and_changes_the_fingerprint(tiny_clip: Model) -> None:
    behind = in_train_view(tiny_clip)
    assert behind.fingerprint != tiny_clip.fingerprint
    assert behind.preprocessing.mean == tiny_clip.preprocessing.mean
    assert tiny_clip.preprocessing.__class__ is Preprocessing
    white = Image.new("RGB", (50, 50), (255, 255, 255))
    assert np.allclose(behind.preprocessing(white), tiny_clip.preprocessing(white))
