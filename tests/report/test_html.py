from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.report.html import Markup, isolated, join, tag
from tests.report.checks import Page


def test_text_and_attributes_are_escaped_and_markup_is_not():
    assert tag("p", "<b>", Markup("<i>x</i>"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<i>x</i></p>'


def test_attribute_names_flags_and_numbers():
    line = tag("line", x1=1.0, x2=2.345678, stroke_width=2, class_="a", hidden=True, id=None, open=False)
    assert line == '<line x1="1" x2="2.35" stroke-width="2" class="a" hidden="hidden"></line>'


def test_children_may_be_nested_none_or_numbers():
    assert join("a", None, [1, [tag("br"), "b"]], 2.5) == "a1<br>b2.5"


@given(st.text())
def test_any_text_comes_back_as_written(text):
    page = Page(tag("p", text, title=text))
    shown = page.text
    # Control characters and lone surrogates have no place in HTML; all else must survive.
    if text.isprintable():
        assert shown == text and page.all("p")[0]["title"] == text
    assert page.elements == [("p", page.all("p")[0])]


def test_undecodable_file_names_can_be_written():
    name = b"caf\xe9.jpg".decode("utf-8", errors="surrogateescape")
    assert b"caf" in tag("p", name, title=name).encode("utf-8")


CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def open_isolates(text: str) -> int:
    """How many isolates are open at the end, as UAX #9 (BD8, BD9) counts them; −1 if one was closed too often."""
    depth = 0
    for letter in text:
        depth += letter in "\u2066\u2067\u2068"
        depth -= letter == "\u2069"
        if depth < 0:
            return -1
    return depth


@given(st.text(alphabet=CONTROLS + "ab א", max_size=20))
def test_no_name_turns_its_neighbours_round(name):
    shown = isolated(name)
    assert open_isolates(shown) == 0
    if any(letter in CONTROLS for letter in name):
        # One isolate from the first letter to the last: overrides inside end with it.
        assert shown[0] == "\u2068" and shown[-1] == "\u2069"
        assert all(open_isolates(shown[:end]) > 0 for end in range(1, len(shown)))
        assert [c for c in shown if c not in CONTROLS] == [c for c in name if c not in CONTROLS]
    else:
        assert shown == name
    page = Page(tag("p", name, title=name))
    assert page.text == shown and page.all("p")[0]["title"] == shown


def test_text_around_a_name_is_outside_its_isolate():
    assert tag("p", isolated("gpj\u202eexe") + ", 97 %") == "<p>\u2068\u2068gpj\u202eexe\u2069, 97 %\u2069</p>"
