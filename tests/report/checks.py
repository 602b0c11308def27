"""What every report must hold to: it parses, it loads nothing, and it says in words what it shows in pictures.

A page of verdicts has one script, which must be ours, and links to files beside it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.resources import files

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
        if not {"style", "script"} & set(self._open):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_page(document: str, *, verdicts: bool = False) -> Page:
    """Parse a report and assert what holds for all of them; of a page of verdicts, what holds for those."""
    assert document.startswith("<!DOCTYPE html>")
    page = Page(document)
    # Nothing is loaded: no scripts, no frames, no style sheets, only pictures that are inside the file.
    tags = [tag for tag, _ in page.elements]
    assert not set(tags) & {"link", "iframe", "object", "embed", "base", "form"}
    assert tags.count("script") == verdicts
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    if verdicts:
        script = files("deltaenergy.report").joinpath("verdicts.js").read_text(encoding="utf-8")
        assert f"<script>{script}</script>" in document
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in policy
    else:
        assert "script-src" not in policy
    inside = ("data:", "#", "./") if verdicts else ("data:image/jpeg;base64,", "#", "./")
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"event handler {name} in <{tag}>"
            if name in {"src", "srcset", "href", "data", "action", "poster", "background"}:
                assert value is not None and value.startswith(inside), (tag, name, value)
            assert "url(" not in (value or "")
    assert not re.search(r"@import|url\(|https?://", document.split("<style>")[1].split("</style>")[0])
    # Text alternatives, unique ids, links that lead somewhere, one main heading.
    assert all(image.get("alt") or image["src"] == "data:," for image in page.all("img"))
    assert all(chart.get("aria-label") or chart.get("aria-hidden") for chart in page.all("svg"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"] or "" for link in page.all("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert len(page.all("h1")) == 1 and page.all("html")[0]["lang"] == "en"
    return page
