"""`make_method(method.spec) == method` for every method and term, with hostile texts in every text parameter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.classifiers.methods import METHODS, Method, make_method
from deltaenergy.core.specs import parameters_of
from deltaenergy.errors import InputError

NAMES = [name for name, cls in METHODS.items() if issubclass(cls, Method)]
HOSTILE = st.text(alphabet=st.one_of(st.sampled_from(list("'\"\\,+()[]{}=:/ \n\t")), st.characters()), max_size=20)


@pytest.mark.parametrize("name", NAMES)
@given(text=HOSTILE)
@settings(max_examples=40)
def test_round_trip(name: str, text: str) -> None:
    cls = METHODS.get(name)
    for parameter, hint in parameters_of(cls).items():
        values = {str: [text, f"{text}{{}}"], tuple[str, ...]: [(f"{text}{{}}", "{}")]}.get(hint, [])
        for value in values:
            try:
                method = cls(**{parameter: value})
            except InputError:
                continue  # a template without its braces, or no words at all, is no setting
            assert isinstance(method, Method) and make_method(method.spec) == method, method.spec
