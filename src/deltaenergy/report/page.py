"""The page around every report: one HTML file with its style inside, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from deltaenergy.report.html import Child, Markup, join, tag

# Tables of more columns than this become blocks on a phone.
STACKS_ABOVE = 3
# … and with more than these on paper, too.
PAPER_ABOVE = 7


@dataclass(frozen=True)
class Section:
    """One part of a report with a heading of its own, and an entry in the page's navigation."""

    id: str
    heading: str
    body: Child
    lead: Child = None


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, its value, and a line that puts it into words."""

    label: str
    value: str
    note: str = ""


def render_page(title: str, subtitle: str, sections: Sequence[Section], *, footer: str = "", script: str = "") -> str:
    """A whole HTML document, with a `script` of our own if it has one; no other can run, and nothing is fetched."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="deltaenergy"),
        tag("title", title),
        tag("style", Markup(files("deltaenergy.report").joinpath("style.css").read_text(encoding="utf-8"))),
    )
    links = [tag("li", tag("a", section.heading, href=f"#{section.id}")) for section in sections[1:]]
    header = tag(
        "header",
        tag("h1", title),
        tag("p", subtitle, class_="subtitle"),
        tag("nav", tag("ul", links), aria_label="Sections") if links else None,
    )
    body = tag(
        "body",
        header,
        tag("main", [_section(section) for section in sections]),
        tag("footer", footer) if footer else None,
        tag("script", Markup(script)) if script else None,
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _policy(script: str) -> str:
    """What a browser may do with the page: pictures from the file itself or the same disk, and the one script."""
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: file: 'self'"]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
        rules.append(f"script-src 'sha256-{digest}'")
    return "; ".join(rules)


def tiles(figures: Sequence[Tile]) -> Markup:
    """Key figures side by side."""
    return tag(
        "dl",
        [
            tag(
                "div",
                tag("dt", figure.label),
                tag("dd", figure.value, class_="value"),
                tag("dd", figure.note, class_="note") if figure.note else None,
            )
            for figure in figures
        ],
        class_="tiles",
    )


def figure(content: Markup, caption: Child, css: str = "") -> Markup:
    """A chart with its caption."""
    return tag("figure", tag("figcaption", caption), content, class_=f"panel {css}".strip())


def table(
    columns: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    numeric: frozenset[int] = frozenset(),
    row_headers: int = 1,
    highlighted: frozenset[int] = frozenset(),
    groups: Sequence[tuple[str, int]] = (),
    css: str = "",
) -> Markup:
    """A table. `numeric` columns are right-aligned; `groups` are headings over so many columns each.

    Where it is wider than the screen it scrolls, its first column stays, and a shadow says that there is more. On a
    phone, a table of many columns becomes one block per row, in which every value has its column's name.
    """
    over = [name for name, width in groups for _ in range(width)]
    labels = [
        f"{over[i]}: {name}" if over and over[i] else name if type(name) is str else None
        for i, name in enumerate(columns)
    ]

    def cell(position: int, content: Child) -> Markup:
        css = "number" if position in numeric else None
        if position < row_headers:
            return tag("th", content, scope="row", class_=css)
        return tag("td", content, class_=css, data_label=labels[position])

    head = [tag("th", name, scope="col", class_="number" if i in numeric else None) for i, name in enumerate(columns)]
    top = [tag("th", name, colspan=width, scope="colgroup", class_="group") for name, width in groups]
    body = [
        tag("tr", [cell(i, content) for i, content in enumerate(row)], class_="chosen" if n in highlighted else None)
        for n, row in enumerate(rows)
    ]
    # The wrapper takes the keyboard focus, so that its overflow can be scrolled without a mouse.
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", top) if top else None, tag("tr", head)),
            tag("tbody", body),
            class_=" ".join(filter(None, [css, *_narrowed(len(columns) if css != "matrix" else 0)])) or None,
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def definitions(entries: Sequence[tuple[str, Child]]) -> Markup:
    """Names and values in two columns: how a report was made."""
    return tag("dl", [join(tag("dt", name), tag("dd", value)) for name, value in entries], class_="facts")


def _section(section: Section) -> Markup:
    return tag(
        "section",
        tag("h2", section.heading, id=f"{section.id}-heading"),
        tag("p", section.lead, class_="lead") if section.lead else None,
        section.body,
        id=section.id,
        aria_labelledby=f"{section.id}-heading",
    )


def _narrowed(columns: int) -> list[str]:
    """How a table of so many columns fits narrow screens and paper: row by row, each cell under its own label."""
    names = {"stacks": STACKS_ABOVE, "stacks-on-paper": PAPER_ABOVE}
    return [name for name, most in names.items() if columns > most]
