"""How a report was made, so that anybody can make it again; and what had to be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from deltaenergy.data.items import Unreadable
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.page import Section, definitions, table
from deltaenergy.report.words import count, score_value

# Longer lists of unreadable images are cut; the command line prints them all.
MOST_LISTED = 100


def provenance_section(made: dict[str, Any], scores: Markup) -> Section:
    """Model, classes, prompts, settings, versions, command; then the table of scores."""
    entries = [*_identity(made), *_settings(made), ("date", str(made["date"]))]
    names = tag("ol", [tag("li", name) for name in made["classes"]], class_="names")
    classes = tag("details", tag("summary", f"The {count(len(made['classes']), 'class', 'classes')}"), names)
    return Section("made", "How this was made", join(definitions(entries), scores, classes))


def unreadable_note(unreadable: Sequence[Unreadable]) -> Markup | None:
    """A warning that lists the images that could not be read."""
    if not unreadable:
        return None
    shown = [tag("li", tag("code", image.id), f": {image.reason}") for image in unreadable[:MOST_LISTED]]
    more = len(unreadable) - MOST_LISTED
    if more > 0:
        shown.append(tag("li", f"and {more:,} more"))
    were = "was" if len(unreadable) == 1 else "were"
    return tag(
        "div",
        tag("p", f"{count(len(unreadable), 'picture')} could not be read and {were} left out."),
        tag("details", tag("summary", "Which"), tag("ul", shown)),
        class_="warning",
    )


def _identity(made: dict[str, Any]) -> list[tuple[str, Child]]:
    model, classifier = made["model"], made["classifier"]
    entries: list[tuple[str, Child]] = [
        ("model", model["name"]),
        ("model fingerprint", tag("code", model["fingerprint"])),
        ("classifier", classifier["method"]),
    ]
    templates = classifier.get("templates")
    if templates:
        label = "prompt template" if len(templates) == 1 else "prompt templates"
        entries.append((label, [join(tag("code", text), tag("br")) for text in templates]))
    if classifier.get("batch_dependent"):
        entries.append(("mind", "an image’s answer depends on the others of its batch, and so do the figures"))
    entries.append(("classes", [f"{count(len(made['classes']), 'name')}, hash ", tag("code", made["classes_hash"])]))
    return entries


def _settings(made: dict[str, Any]) -> list[tuple[str, Child]]:
    entries: list[tuple[str, Child]] = []
    if "limit" in made:
        limit = "all pictures" if made["limit"] is None else f"at most {made['limit']:,} of each set"
        entries.append(("pictures", limit))
    if "resamples" in made:
        entries.append(("intervals", f"{made['resamples']:,} bootstrap resamples, seed {made['seed']}"))
    if made.get("guarantee"):
        entries.append(("the detector’s threshold", str(made["guarantee"])))
    entries.append(("computed on", f"{made['device']}, {made['precision']}"))
    entries.append(("versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())))
    if made.get("command"):
        entries.append(("command", tag("code", made["command"])))
    return entries


def score_table(
    scores: Mapping[str, Mapping[str, str]], thresholds: Mapping[str, float | None], given: Set[str]
) -> Markup:
    """Each score with its formula, source and threshold; those in `given` came with a detector."""
    rows: list[list[Child]] = [
        [
            spec,
            tag("code", about["formula"]),
            about["paper"],
            _threshold(thresholds[spec]) + (" (detector’s)" if spec in given else ""),
        ]
        for spec, about in scores.items()
    ]
    return table(["score", "formula", "source", "threshold"], rows, caption="Scores", numeric=frozenset({3}))


def _threshold(value: float | None) -> str:
    return "none: cross-fitted" if value is None else score_value(value)
