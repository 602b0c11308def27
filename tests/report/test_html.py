from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.report.html import Markup, join, tag
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
