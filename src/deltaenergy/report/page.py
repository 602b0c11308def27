"""The page around every report: one HTML file that loads nothing, with how the report was made."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from deltaenergy import __version__
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.words import count, score_value

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import Unreadable
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.guarantee import Guarantee
    from deltaenergy.detector.names import NamesRule

# Tables of more columns than this become blocks on a phone.
STACKS_ABOVE = 3
# Tables of more columns than this also do on paper.
PAPER_ABOVE = 7
# Longer lists of unreadable images are cut; the command line prints them all.
MOST_LISTED = 100


@dataclass(frozen=True)
class Section:
    """One part of a report, with a heading and an entry in the page's navigation."""

    id: str
    heading: str
    body: Child
    lead: Child = None


@dataclass(frozen=True)
class Tile:
    """A key number: its name, its value, and a line of text."""

    label: str
    value: str
    note: str = ""


def render_page(title: str, subtitle: str, sections: Sequence[Section], *, note: str = "", script: str = "") -> str:
    """A whole HTML document. Only our own `script` can run, and nothing is fetched.

    `note` is added to the footer.
    """
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
    parts = [
        tag(
            "section",
            tag("h2", section.heading, id=f"{section.id}-heading"),
            tag("p", section.lead, class_="lead") if section.lead else None,
            section.body,
            id=section.id,
            aria_labelledby=f"{section.id}-heading",
        )
        for section in sections
    ]
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
        tag("main", parts),
        tag("footer", f"Made by deltaenergy {__version__}. This page loads nothing from the network.", note),
        tag("script", Markup(script)) if script else None,
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _policy(script: str) -> str:
    """The content security policy: images from the page or the same disk, and our script."""
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: file: 'self'"]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
        rules.append(f"script-src 'sha256-{digest}'")
    return "; ".join(rules)


def tiles(figures: Sequence[Tile]) -> Markup:
    shown = []
    for one in figures:
        note = tag("dd", one.note, class_="note") if one.note else None
        shown.append(tag("div", tag("dt", one.label), tag("dd", one.value, class_="value"), note))
    return tag("dl", shown, class_="tiles")


def figure(content: Markup, caption: Child) -> Markup:
    return tag("figure", tag("figcaption", caption), content, class_="panel")


def folded(summary: str, *content: Child) -> Markup:
    return tag("details", tag("summary", summary), *content)


def table(
    columns: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    numeric: frozenset[int] = frozenset(),
    highlighted: frozenset[int] = frozenset(),
    groups: Sequence[tuple[str, int]] = (),
    css: str = "",
) -> Markup:
    """A table. `numeric` columns are right-aligned; `groups` are headings with their number of columns.

    A table wider than the screen scrolls; its first column stays, and a shadow shows that there is more. On a phone, a
    table of many columns becomes one block per row, with the column name at each value.
    """
    over = [name for name, width in groups for _ in range(width)]
    labels = [
        f"{over[i]}: {name}" if over and over[i] else name if type(name) is str else None
        for i, name in enumerate(columns)
    ]

    def cell(position: int, content: Child) -> Markup:
        css = "number" if position in numeric else None
        if position == 0:
            return tag("th", content, scope="row", class_=css)
        return tag("td", content, class_=css, data_label=labels[position])

    head = [tag("th", name, scope="col", class_="number" if i in numeric else None) for i, name in enumerate(columns)]
    top = [tag("th", name, colspan=width, scope="colgroup", class_="group") for name, width in groups]
    body = [
        tag("tr", [cell(i, content) for i, content in enumerate(row)], class_="chosen" if n in highlighted else None)
        for n, row in enumerate(rows)
    ]
    fits = [("stacks", STACKS_ABOVE), ("stacks-on-paper", PAPER_ABOVE)] if css != "matrix" else []
    names = [css, *(name for name, most in fits if len(columns) > most)]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", top) if top else None, tag("tr", head)),
        tag("tbody", body),
        class_=" ".join(filter(None, names)) or None,
    )
    # The wrapper takes the keyboard focus, so it can be scrolled without a mouse.
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def definitions(facts: Mapping[str, Child]) -> Markup:
    """Names and values in two columns: how a report was made."""
    return tag("dl", [join(tag("dt", name), tag("dd", value)) for name, value in facts.items()], class_="facts")


def provenance_section(provenance: Mapping[str, Any], scores: Markup) -> Section:
    """Model, classes, prompts, settings, versions, command; then the table of scores."""
    model, classifier, given = provenance["model"], provenance["classifier"], provenance.get
    templates, names, limit = classifier.get("templates"), provenance["classes"], given("limit")
    facts: dict[str, Child] = {
        "model": model["name"],
        "model fingerprint": tag("code", model["fingerprint"]),
        "classifier": classifier["method"],
    }
    if templates:
        label = "prompt template" if len(templates) == 1 else "prompt templates"
        facts[label] = [join(tag("code", text), tag("br")) for text in templates]
    if classifier.get("batch_dependent"):
        facts["note"] = "the result of an image depends on the other images of its batch"
    facts["classes"] = [f"{count(len(names), 'name')}, hash ", tag("code", provenance["classes_hash"])]
    if "limit" in provenance:
        facts["images"] = "all images" if limit is None else f"at most {limit:,} of each set"
    if "resamples" in provenance:
        facts["intervals"] = f"{provenance['resamples']:,} bootstrap resamples, seed {provenance['seed']}"
    if given("guarantee"):
        facts["the detector’s threshold"] = str(provenance["guarantee"])
    facts["computed on"] = f"{provenance['device']}, {provenance['precision']}"
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    if given("command"):
        facts["command"] = tag("code", provenance["command"])
    facts["date"] = str(provenance["date"])
    listed = tag("ol", [tag("li", name) for name in names], class_="names")
    classes = folded(f"The {count(len(names), 'class', 'classes')}", listed)
    return Section("made", "How this was made", join(definitions(facts), scores, classes))


def unreadable_note(unreadable: Sequence[Unreadable]) -> Markup | None:
    if not unreadable:
        return None
    shown = [tag("li", tag("code", image.id), f": {image.reason}") for image in unreadable[:MOST_LISTED]]
    more = len(unreadable) - MOST_LISTED
    if more > 0:
        shown.append(tag("li", f"and {more:,} more"))
    were = "was" if len(unreadable) == 1 else "were"
    return tag(
        "div",
        tag("p", f"{count(len(unreadable), 'image')} could not be read and {were} skipped."),
        folded("Which", tag("ul", shown)),
        class_="warning",
    )


def score_table(
    scores: Mapping[str, Mapping[str, str]], thresholds: Mapping[str, float | None], given: Collection[str] = ()
) -> Markup:
    """Each score with its formula, source and threshold; those in `given` came with a detector."""
    rows: list[list[Child]] = []
    for spec, about in scores.items():
        threshold = thresholds[spec]
        said = "none: cross-fitted" if threshold is None else score_value(threshold)
        whose = " (detector’s)" if spec in given else ""
        rows.append([spec, tag("code", about["formula"]), about["paper"], said + whose])
    return table(["score", "formula", "source", "threshold"], rows, caption="Scores", numeric=frozenset({3}))


def detector_page(
    title: str,
    sections: Sequence[Section],
    by: Detector | Classifier,
    *,
    command: str | None,
    guarantee: Guarantee | NamesRule | None,
    what: str = "",
    script: str = "",
) -> str:
    """A whole page about results of a detector or classifier: `sections`, and how it was made.

    `what` is the subject of the subtitle, by default the score.
    """
    from deltaenergy.detector.detector import Detector  # imports torch
    from deltaenergy.evaluation.results import provenance_of

    classifier, scores = by.classifier if isinstance(by, Detector) else by, Markup("")
    if isinstance(by, Detector):
        score, what = by.score, what or f"score {by.score.spec}"
        scores = score_table({score.spec: {"formula": score.formula, "paper": score.paper}}, {score.spec: by.threshold})
    promise = None if guarantee is None else str(guarantee)
    provenance = provenance_of(classifier, command=command, guarantee=promise)
    parts = [f"model {provenance['model']['name']}", what, provenance["date"][:10]]
    return render_page(title, " · ".join(parts), [*sections, provenance_section(provenance, scores)], script=script)
