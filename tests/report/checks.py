"""What every report must hold to: it parses, it loads nothing, and it says in words what it shows in pictures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "meta", "link", "col", "input"}


class Page(HTMLParser):
    """The elements of a document, checked for nesting, with its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_page(document: str) -> Page:
    """Parse a report and assert what holds for all of them."""
    assert document.startswith("<!DOCTYPE html>")
    page = Page(document)
    # Nothing is loaded: no scripts, no frames, no style sheets, only pictures that are inside the file.
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"event handler {name} in <{tag}>"
            if name in {"src", "srcset", "href", "data", "action", "poster", "background"}:
                assert value is not None and value.startswith(("data:image/jpeg;base64,", "#")), (tag, name, value)
            assert "url(" not in (value or "")
    assert not re.search(r"@import|url\(|https?://", document.split("<style>")[1].split("</style>")[0])
    # Text alternatives, unique ids, links that lead somewhere, one main heading.
    assert all(image.get("alt") for image in page.all("img"))
    assert all(chart.get("aria-label") or chart.get("aria-hidden") for chart in page.all("svg"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a") if link["href"]} <= set(ids)
    assert len(page.all("h1")) == 1 and page.all("html")[0]["lang"] == "en"
    return page
