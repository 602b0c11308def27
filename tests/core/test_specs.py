"""The grammar of specs: whatever is written comes back, whatever is wrong is said, and nothing else happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaenergy.classifiers.methods import METHODS
from deltaenergy.core.specs import (
    LONGEST,
    Count,
    Named,
    NonNegative,
    Positive,
    Range,
    Settings,
    Words,
    bounded,
    build,
    fit_type,
    format_value,
    parameters_of,
    parse,
    read_value,
    split,
)
from deltaenergy.errors import InputError
from deltaenergy.scores.adaptive import ADAPTERS
from deltaenergy.scores.registry import SCORES

# Strings with everything that means something to the grammar, and with whatever else Unicode has.
HOSTILE = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=",'\"/+()[]{}=:\\ \n\t|a1.-", max_size=25),
    st.sampled_from(
        ["true", "None", "nan", "inf", "1", "-1.5", "1e5", "[1,2]", "()", "", " ", "it's", "a b", "é", "0x10"]
    ),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e290, max_value=1e290)


@dataclass(frozen=True)
class Example(Settings):
    """Every kind of field that settings have."""

    kind: ClassVar[str] = "example"
    name, summary, formula, paper = "an-example", "", "", ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "far": {"ratio": 5.0, "words": ("x", "y"), "where": "off, there"},
        "near": {"ratio": 0.5},
    }
    ratio: float = 1.0
    count: int = 2
    flag: bool = False
    where: str = ""
    kept: float | str = 0.5
    limit: int | None = 3
    mode: Literal["none", "mean"] = "mean"
    numbers: tuple[float, ...] = (1.0, 2.0)
    words: tuple[str, ...] = ("a",)


EXAMPLES = st.builds(
    Example,
    ratio=FINITE,
    count=st.integers(-(2**60), 2**60),
    flag=st.booleans(),
    where=HOSTILE,
    kept=st.one_of(FINITE, HOSTILE),
    limit=st.one_of(st.none(), st.integers(-100, 100)),
    mode=st.sampled_from(["none", "mean"]),
    numbers=st.lists(FINITE, min_size=1, max_size=4).map(tuple),
    words=st.lists(HOSTILE, min_size=1, max_size=4).map(tuple),
)


def again(spec: str) -> Example:
    (part,) = parse(spec, "example")
    assert part.name == Example.name
    return build(Example, part)


@given(EXAMPLES)
@example(Example(words=(".0", ".", "./a")))
def test_the_spec_stands_for_the_settings(settings: Example) -> None:
    assert again(settings.spec) == settings
    assert again(settings.spec).spec == settings.spec


@given(EXAMPLES, EXAMPLES)
def test_specs_can_be_joined_and_taken_apart_again(one: Example, other: Example) -> None:
    first, second = parse(f"{one.spec}+{other.spec}", "example")
    assert (build(Example, first), build(Example, second)) == (one, other)
    for separator in ",/+":
        assert split(f"{one.spec} {separator} {other.spec}", separator) == [one.spec, other.spec]


@given(HOSTILE)
def test_a_text_is_read_as_it_was_formatted(text: str) -> None:
    assert read_value(format_value(text)) == text
    assert read_value(format_value([text, 1.5, text])) == [text, 1.5, text]


@given(st.text(max_size=60))
@example("(" * 5000)
@example("a(b=" + "[" * 5000 + "]" * 5000 + ")")
@example("a(b='" + "x" * 100)
@example("a(b=1)(c=2)")
@example("a(b=1)c)")
@example("\x00(a=\x00)")
def test_any_text_parses_or_is_refused_with_a_message(text: str) -> None:
    try:
        parts = parse(text, "example")
    except InputError as error:
        assert str(error)
    else:
        assert parts and all(part.name for part in parts)
        for part in parts:
            for value in part.params.values():
                read_value(value)


def test_values_as_they_are_written() -> None:
    assert parse("a:b( x = 1, y='p,q' , z=[1, 'two', three ] )+c", "example") == [
        Named("a", "b", {"x": "1", "y": "'p,q'", "z": "[1, 'two', three ]"}),
        Named("c", None, {}),
    ]
    written = {"1": 1, "-2.5": -2.5, "TRUE": True, "none": None, "two words": "two words", "'1'": "1", "a/b": "a/b"}
    assert {text: read_value(text) for text in written} == written
    assert read_value("[1, two, 'three']") == [1, "two", "three"]
    # A stray apostrophe is part of a word, not the start of a quotation.
    assert parse("a(x=it's,y=2)", "example")[0].params == {"x": "it's", "y": "2"}


def test_text_that_looks_like_something_else_stays_text() -> None:
    assert again("an-example(where=3)").where == "3"
    assert again("an-example(where=true)").where == "true"
    assert again("an-example(where=[a,b])").where == "[a,b]"
    assert again("an-example(mode=none)").mode == "none"
    assert again("an-example(limit=none)").limit is None
    assert again("an-example(words=[a, b c])").words == ("a", "b c")


def test_the_shortest_of_preset_and_parameters_is_taken() -> None:
    assert again("an-example:far").spec == "an-example:far"
    assert again("an-example:far(count=7)").spec == "an-example:far(count=7)"
    assert again("an-example(ratio=0.5)").spec == "an-example:near"
    assert again("an-example(ratio=0.25)").spec == "an-example(ratio=0.25)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "has no name"),
        ("a++b", "has no name"),
        ("an-example:", "has no name or preset"),
        ("an-example(", r"a \) is missing"),
        ("an-example(where='x)", "a ' is missing"),
        ("an-example(ratio)", "parameter=value"),
        ("an-example(ratio=)", "ratio has no value"),
        ("an-example(ratio=1,ratio=2)", "given twice"),
        ("an-example(ratio=1)x", "not of the form"),
        ("an-example(where=a)b)", "not of the form"),
        ("x" * (LONGEST + 1), "characters long"),
    ],
)
def test_wrong_grammar(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(spec, "example")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("an-example:fer", "Example 'an-example' has no preset 'fer'. Did you mean 'far'"),
        ("an-example(ration=1)", "has no parameter 'ration'. Did you mean 'ratio'"),
        ("an-example(ratio=abc)", "an-example: ratio must be a finite number, got 'abc'"),
        ("an-example(ratio=nan)", "ratio must be a finite number"),
        ("an-example(ratio=1e400)", "ratio must be a finite number"),
        ("an-example(ratio=[1])", "ratio must be a finite number"),
        ("an-example(ratio=true)", "ratio must be a finite number"),
        ("an-example(count=1.5)", "count must be a whole number"),
        ("an-example(count=true)", "count must be a whole number"),
        ("an-example(count=99999999999999999999)", "count must be a whole number"),
        ("an-example(flag=1)", "flag must be true or false"),
        ("an-example(limit=abc)", "limit must be a whole number or none, got 'abc'"),
        ("an-example(mode=maen)", "mode must be 'none' or mean, got 'maen'"),
        ("an-example(numbers=[])", "numbers must be a list"),
        ("an-example(numbers=[1,x])", "numbers must be a list, each a finite number"),
    ],
)
def test_wrong_values(spec: str, message: str) -> None:
    with pytest.raises(InputError) as found:
        again(spec)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Positive, [1e-9, 5], [0, -1, "1", True, None, float("nan"), float("inf")]),
        (Annotated[float, Range(0, 1)], [0, 0.5, 1], [-1e-9, 1 + 1e-9]),
        (Annotated[float, Range(0, 1, above=True)], [1e-9, 1], [0, 1.5]),
        (Count, [1, np.int64(7)], [0, 1.5, True]),
        (Count | None, [1, None], [0, "none"]),
        (tuple[Positive, ...], [[1, 2], (0.5,), 3, np.array([1.0, 2.0])], [[], [1, 0], [1, "x"]]),
        (tuple[NonNegative, Positive], [(0, 1)], [(0, 0), (1,), (1, 1, 1)]),
        (float | Literal["background"], [0.5, "background"], ["back", None]),
        (Literal[False], [False], [True, 0]),
        (Words, ["a b"], ["", " "]),
    ],
)
def test_bounds(hint: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        fit_type("x", value, hint)
    for value in bad:
        with pytest.raises(InputError, match="x must be"):
            fit_type("x", value, hint)


BOUNDED = [
    (cls, name, get_args(hint)[1])
    for registry in (SCORES, METHODS, ADAPTERS)
    for _, cls in registry.items()  # type: ignore[attr-defined]
    for name, hint in parameters_of(cls, rules=True).items()
    if get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Range)
]


@pytest.mark.parametrize(("cls", "name", "bounds"), BOUNDED, ids=[f"{cls.name}-{name}" for cls, name, _ in BOUNDED])
def test_every_setting_is_held_to_its_bounds(cls: type[Settings], name: str, bounds: Range) -> None:
    beyond = [bounds.low - 1, *([bounds.low] if bounds.above else []), bounds.high + 1]
    for value in beyond:
        with pytest.raises(InputError, match=f"{name} must be"):
            cls(**{name: value})


def test_arguments_are_held_to_their_bounds() -> None:
    @bounded
    def power(base: float, *, exponent: Count = 2, note: Any = None) -> float:
        return base**exponent

    assert power(3) == 9.0 and power(2, exponent=3, note=object()) == 8.0
    with pytest.raises(InputError, match="power: exponent must be"):
        power(3, exponent=0)


def test_settings_are_frozen_and_can_be_compared() -> None:
    settings = Example(ratio=2, count=np.int64(4), numbers=[np.float32(0.5)])  # type: ignore[arg-type]
    assert (settings.ratio, settings.count, settings.numbers) == (2.0, 4, (0.5,))
    assert [type(value) for value in (settings.ratio, settings.count, settings.numbers[0])] == [float, int, float]
    with pytest.raises(FrozenInstanceError):
        settings.ratio = 3.0  # type: ignore[misc]
    assert {settings, Example(ratio=2, count=4, numbers=(0.5,))} == {settings}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plot++", ["plot++"]),
        (" plot++ ", ["plot++"]),
        ("plot++:fast(a=1)", ["plot++"]),
        ("plot++(a='b+c')+ebm(p=1)", ["plot++", "ebm"]),
        ("plot+++ebm", ["plot++", "ebm"]),
        ("coop+plot++", ["coop", "plot++"]),
        ("plot+ebm", ["plot", "ebm"]),
        ("a+b+ebm", ["a+b", "ebm"]),
        ("a+b+c", ["a+b+c"]),
    ],
)
def test_a_plus_may_belong_to_a_name(text: str, names: list[str]) -> None:
    known = ["plot", "plot++", "ebm", "coop", "a", "a+b", "a+b+c"]
    assert [part.name for part in parse(text, "method", known)] == names


@pytest.mark.parametrize("text", ["plot+", "plot++", "+plot", "plot++++ebm", "plot+(a=1)"])
def test_a_plus_that_belongs_to_no_name_leaves_a_gap(text: str) -> None:
    known = ["plot", "ebm"] if text == "plot++" else ["plot", "plot++", "ebm"]
    with pytest.raises(InputError, match="has no name"):
        parse(text, "method", known)


@given(HOSTILE)
def test_names_with_a_plus_change_nothing_else(text: str) -> None:
    def found(names: list[str]) -> object:
        try:
            return parse(text, "method", names)
        except InputError as error:
            return str(error)

    if "plot" not in text:
        assert found(["plot++", "coop"]) == found([])
