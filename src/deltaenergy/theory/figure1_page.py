"""The paper's Figure 1 as a page: claims and figures, ΔEnergy of both folders, and images before and after masking."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from PIL import Image

from deltaenergy.classifiers.base import Classifier
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.explanation.colours import laid_over
from deltaenergy.explanation.parts import parts_fragment
from deltaenergy.files import check_writable, read_json, write_json, write_text
from deltaenergy.report.charts import HistogramRow, histogram_chart, plain
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import jpeg_uri
from deltaenergy.report.page import Section, Tile, definitions, figure, render_page, table, tiles, unreadable_note
from deltaenergy.report.words import count, percent, score_value
from deltaenergy.stats.metrics import Estimate
from deltaenergy.theory.figure1 import MaskedSet, Panel, PaperFigure, paper_figure
from deltaenergy.theory.figure1_statistics import (
    MASKS,
    claims,
    correlation_differences,
    detection,
    figure_record,
    mask_statistics,
    of_whom,
)
from deltaenergy.theory.masking import BEFORE, KEEPS, REMOVES

WORDS = {
    BEFORE: "before",
    KEEPS: "P_j < 0 masked",
    REMOVES: "P_j > 0 masked",
}
_COLOURS = {"known": 0, "unknown": 1}
_MAP_LEAD = (
    "Yellow is where it stands what speaks for the class that the image was named before. The same picture follows "
    "with P_j < 0 masked, which keeps what speaks for the class, and with P_j > 0 masked, which takes it away. The "
    "images were drawn at random."
)
_STATISTICS_LEAD = (
    "How much of the map before is left in the map after: correlation of the order of all places, share of the quarter "
    "of the places that stood out which still does (a quarter by chance), and whether the place of the peak stays. "
    "Under each mask stands one that masks as many entries, chosen at random."
)


def run_paper_figure(
    classifier: Classifier, known: Any, unknown: Any, out: str | Path, *, command: str = "", **options: Any
) -> PaperFigure:
    """`paper_figure`, written as the page `out` and, beside it, as JSON with the same name."""
    page, beside = check_outputs(out)
    found = paper_figure(classifier, known, unknown, **options)
    write_json(beside, figure_record(found, command))
    write_text(page, paper_figure_page(found, command))
    return found


def check_outputs(out: str | Path) -> tuple[Path, Path]:
    """The page and the JSON beside it, or an error if they cannot be written, before the work.

    A JSON of that name that no figure wrote is somebody's own, and is not replaced.
    """
    page = Path(out)
    if page.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"{page}: the figure is an HTML page, so that its name must end in .html.")
    beside = page.with_suffix(".json")
    for path in (page, beside):
        check_writable(path)
    if beside.exists() and not _is_ours(beside):
        raise InputError(
            f"{beside} is a file of your own, and the figures would replace it: give the page another name."
        )
    return page, beside


def _is_ours(path: Path) -> bool:
    try:
        found = read_json(path)
    except DeltaEnergyError:
        return False
    return isinstance(found, dict) and {"claims", "sets", "provenance"} <= found.keys()


def paper_figure_page(found: PaperFigure, command: str = "") -> str:
    """A whole HTML document."""
    sections = [
        Section("summary", "Does it hold here?", _summary(found)),
        Section("energy", "ΔEnergy of known and unknown images", _energies(found), _energy_lead(found)),
    ]
    for name, one in found.sets.items():
        if one.panels:
            body = tag("div", [_panel(found, one, panel) for panel in one.panels], class_="masked-rows")
            lead = _MAP_LEAD if name == "known" else None
            sections.append(Section(f"masked-{name}", f"Masking {name} images", body, lead))
    sections.append(Section("statistics", "What masking does", _tables(found), _STATISTICS_LEAD))
    sections.append(Section("made", "How this was made", _made(found, command)))
    subtitle = f"model {found.provenance['model']['name']} · {count(len(found.classes), 'class', 'classes')} · "
    subtitle += " · ".join(f"{count(len(one), f'{name} image')}" for name, one in found.sets.items())
    return render_page("The paper’s Figure 1 on these images", subtitle, sections)


def _summary(found: PaperFigure) -> Markup:
    known = mask_statistics(found.known)
    figures = [
        Tile("AUROC of ΔEnergy", percent(detection(found).value), "known against unknown images"),
        Tile("Left of the map", plain(round(known[KEEPS].correlation.value, 2)), "correlation with P_j < 0 masked"),
        Tile("Left of the map", plain(round(known[REMOVES].correlation.value, 2)), "correlation with P_j > 0 masked"),
    ]
    rows = [[one.claim, "holds" if one.holds else "does not hold", one.found] for one in claims(found)]
    told = table(
        ["the paper’s claim", "here", "what was found"],
        rows,
        caption=f"Claims of attention are held against the {of_whom(found)}; in brackets 95 % intervals",
    )
    return join(tiles(figures), tag("p", ""), told, unreadable_note(found.unreadable))


def _energy_lead(found: PaperFigure) -> str:
    return (
        f"ΔEnergy is how much the energy rises when the {found.c} most similar classes are reset to 0, each by itself "
        f"(τ = {found.tau:g}). Below the histogram, the known and the unknown image in the middle of theirs."
    )


def _energies(found: PaperFigure) -> Markup:
    auroc = detection(found)
    rows = [HistogramRow(name, one.delta, _COLOURS[name], count(len(one), "image")) for name, one in found.sets.items()]
    chart = histogram_chart(
        rows,
        title="ΔEnergy of known and unknown images",
        x_label="ΔEnergy (larger = more like the known)",
        description=f"AUROC {percent(auroc.value)}.",
        width=620,
    )
    middle = []
    for name, one in found.sets.items():
        place = int(one.delta.argsort(kind="stable")[len(one) // 2])
        heading = tag(
            "h3", f"The middle of the {name} images ", tag("span", PurePath(one.names[place]).name, class_="count")
        )
        middle.append(tag("div", heading, parts_fragment(one.parts[place])))
    caption = f"Known against unknown: AUROC {percent(auroc.value)} ({100 * auroc.low:.1f} to {100 * auroc.high:.1f})"
    return join(figure(chart, caption), tag("div", middle, class_="panels"))


def _panel(found: PaperFigure, one: MaskedSet, panel: Panel) -> Markup:
    name = PurePath(one.names[panel.row]).name or one.names[panel.row]
    class_before = found.classes[one.seen[BEFORE].named[panel.row]]
    cells = [_cell(name, "the picture", panel.picture, [tag("span", name, class_="file", title=one.names[panel.row])])]
    for mask, words in WORDS.items():
        seen = one.seen[mask]
        named = found.classes[seen.named[panel.row]]
        facts: list[Child] = [
            tag("span", words, class_="verdict none"),
            tag("span", f"most like {isolated(named)}", class_="what"),
            tag("span", f"similarity {score_value(seen.top[panel.row])}", class_="what"),
        ]
        if named != class_before:
            before = f"{isolated(class_before)}: {score_value(seen.similarity[panel.row])}"
            facts.append(tag("span", before, class_="what"))
        facts.append(tag("span", f"energy {score_value(seen.energy[panel.row])}", class_="what"))
        if mask != BEFORE:
            left = one.same_class[mask].correlation[panel.row]
            facts.append(tag("span", f"map correlation {left:.2f}".replace("-", "−"), class_="what"))
        about = f"where it stands what speaks for {isolated(class_before)}, {words}"
        cells.append(_cell(name, about, laid_over(panel.maps[mask], panel.picture), facts))
    return tag("ul", [tag("li", cell) for cell in cells], class_="pictures masked")


def _cell(name: str, about: str, picture: Image.Image, facts: Sequence[Child]) -> Markup:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80, optimize=True)
    image = tag("img", src=jpeg_uri(buffer.getvalue()), alt=f"{isolated(name)}: {about}", width=224, height=224)
    return tag("figure", image, tag("figcaption", facts), class_="picture")


def _tables(found: PaperFigure) -> Markup:
    heads = [
        "mask",
        "masked",
        "correlation",
        "quarter",
        "peak",
        "of the class then named",
        "class stays",
        "similarity",
        "energy",
    ]
    parts = []
    for name, one in found.sets.items():
        statistics = mask_statistics(one)
        rows = [
            [
                WORDS.get(mask, "as many at random"),
                percent(figures.masked, 0),
                _estimate(figures.correlation),
                _estimate(figures.overlap, share=True),
                _estimate(figures.peak_stays, share=True),
                _estimate(figures.correlation_named),
                _estimate(figures.class_stays, share=True),
                _estimate(figures.similarity, digits=3, signed=True),
                _estimate(figures.energy, digits=1, signed=True),
            ]
            for mask, figures in ((mask, statistics[mask]) for mask in MASKS)
        ]
        caption = f"{count(len(one), f'{name} image')}: what is left of maps and names, and what changes"
        parts.append(table(heads, rows, caption=caption, numeric=frozenset(range(1, len(heads)))))
        apart = correlation_differences(dict(one.same_class))
        differences = [[key, _estimate(value, signed=True)] for key, value in apart.items()]
        caption = f"Differences of the correlations on the same {name} images"
        parts.append(table(["masks", "difference"], differences, caption=caption, numeric=frozenset({1})))
    return join(parts)


def _estimate(value: Estimate, *, share: bool = False, digits: int = 2, signed: bool = False) -> Markup:
    scale, places = (100, 1) if share else (1, digits)

    def said(number: float) -> str:
        return f"{scale * number:{'+' if signed else ''}.{places}f}".replace("-", "−")

    unit = "\u00a0%" if share else ""
    return join(
        tag("span", said(value.value) + unit),
        tag("span", f"{said(value.low)} to {said(value.high)}", class_="interval"),
    )


def _made(found: PaperFigure, command: str) -> Markup:
    made = found.provenance
    entries: list[tuple[str, Child]] = [
        ("model", made["model"]["name"]),
        ("model fingerprint", tag("code", made["model"]["fingerprint"])),
        ("classifier", made["classifier"]["method"]),
        ("classes", ", ".join(map(isolated, found.classes[:50]))),
        ("maps by", found.method),
        ("τ, c", f"{found.tau:g}, {found.c}"),
        ("seed", str(found.seed)),
        ("date", str(made["date"])),
    ]
    if command:
        entries.append(("command", tag("code", command)))
    return definitions(entries)
