"""The theory report as one HTML page: the theorems, and the paper's Figure 1."""

from __future__ import annotations

from pathlib import PurePath

from deltaenergy.explanation.energy import TAU, C, energy_figure
from deltaenergy.explanation.explanation import jpeg_uri, overlay
from deltaenergy.report.charts import HistogramRow, histogram_chart
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.page import (
    Section,
    Tile,
    figure,
    provenance_section,
    render_page,
    table,
    tiles,
    unreadable_note,
)
from deltaenergy.report.words import count, percent, score_value
from deltaenergy.stats.metrics import Estimate
from deltaenergy.theory.check import TheoryReport
from deltaenergy.theory.figure1 import (
    BEFORE,
    KNOWN,
    MASK_AGAINST,
    MASK_FOR,
    Figure1,
    MaskedSet,
    Panel,
    claims,
    correlation_differences,
    detection,
    mask_statistics,
)


def theory_page(report: TheoryReport, command: str = "") -> str:
    """A whole HTML document: the theorems, and Figure 1 if there were unknown images."""
    bound = report.bound
    figures = [
        Tile("Bound holds", f"{bound.holds.mean():.1%}", "ΔEnergy ≥ −L_ΔE (Theorem 3)"),
        Tile("Counterexamples", str(bound.counterexamples), "condition holds, bound does not"),
        Tile("Order kept", f"{report.pairs.order:.1%}", "of pairs (Theorem 1)"),
    ]
    if report.hessian is not None:
        figures.append(Tile("‖H_S − H_S'‖", f"{report.hessian.distance:.3g}", f"{report.method} (Theorem 4)"))
    rows = [HistogramRow("all images", bound.margin, 0, f"{len(bound.margin)} images")]
    for label, chosen, index in (
        ("paper's condition holds", bound.stated, 1),
        ("a ≥ Z' − Z holds", bound.needed, 2),
    ):
        if chosen.any():
            rows.append(HistogramRow(label, bound.margin[chosen], index, f"{int(chosen.sum())} images"))
    chart = histogram_chart(
        rows,
        title="Margin of Theorem 3's bound",
        x_label="ΔEnergy + L_ΔE",
        threshold=0.0,
        below="bound broken",
        above="bound holds",
        description=f"The bound holds for {bound.holds.mean():.1%} of the images.",
        width=620,
    )
    sentences = [tag("li", tag("b", f"{name}. "), text) for name, text in report.sentences()]
    sections = [
        Section("summary", "Summary", join(tiles(figures), tag("ul", sentences), unreadable_note(report.unreadable))),
        Section(
            "bound",
            "Theorem 3: a lower bound of ΔEnergy",
            figure(chart, "Each image's ΔEnergy + L_ΔE; by the theorem it is not negative."),
        ),
    ]
    sections += _tables(report)
    if report.figure is not None:
        made = {**report.figure.provenance, "command": command}
        sections += [*figure1_sections(report.figure), provenance_section(made, Markup(""))]
    subtitle = f"{report.method} · {report.images} images · τ = {report.tau:g} · p = {report.p:g}"
    note = f" Command: {command}" if command else ""
    return render_page("Theory on this model", subtitle, sections, note=note)


def _tables(report: TheoryReport) -> list[Section]:
    """Theorem 4's norms, Theorem 2's rates, many classes and the Proposition, as far as they were checked."""
    norms = [
        [str(name), *(f"{v:.4g}" for v in (h.distance, h.original, h.masked, h.curvature, h.gradient, h.epsilon))]
        for name, h in ((report.method, report.hessian), (report.method_without, report.hessian_without))
        if report.hessian is not None and h is not None
    ]
    rates = [
        [
            f"{one.tau:.3g}",
            str(one.c),
            *(f"{value:.1%}" for value in (one.condition, one.below, one.excess, one.fpr95, one.fpr95_mcm)),
        ]
        for one in report.false_positives
    ]
    many = [
        [
            f"{one.tau:.3g}",
            str(one.classes),
            f"{one.ratio:.3g}",
            *(f"{value:.1%}" for value in (one.assumption, one.error, one.error_mcm, one.wider)),
        ]
        for one in report.many_classes
    ]
    gaps = [
        [one.target, *(f"{value:.4g}" for value in (one.left, one.right, one.at_optimum, one.curvature, one.level))]
        for one in report.gaps
    ]
    found = [
        (
            "hessian",
            "Theorem 4: spectral norms of Hessians on original and masked features",
            ["method", "‖H_S − H_S'‖", "‖H_S‖", "‖H_S'‖", "‖∇²L_ΔE‖", "‖∇E_S‖", "ε"],
            norms,
        ),
        (
            "rates",
            "Theorem 2: false positive rates at equal thresholds, and FPR95",
            ["τ", "c", "s_1 ≤ τ ln 2", "S_ΔE ≤ S_MCM", "largest FPR_ΔE(λ) − FPR_MCM(λ)", "FPR95", "FPR95 of MCM"],
            rates,
        ),
        (
            "many-classes",
            "Many classes: the appendix's expansions",
            ["τ", "K", "median b / e^a", "b ≥ 10 e^a", "error, ΔEnergy", "error, MCM", "wider gap than MCM's"],
            many,
        ),
        (
            "proposition",
            "Proposition: the loss on a new domain",
            ["target", "found", "bound", "at θ*", "Hessians", "ϵ"],
            gaps,
        ),
    ]
    return [
        Section(key, title, table(heads, cells, caption=title, numeric=frozenset(range(1, len(heads)))))
        for key, title, heads, cells in found
        if cells
    ]


def figure1_sections(found: Figure1) -> list[Section]:
    """Claims; ΔEnergy; some images of both sets; numbers."""
    energy_lead = (
        f"ΔEnergy is how much the energy rises when the {C} most similar classes are reset to 0, each on its own "
        f"(τ = {TAU:g}). Below the histogram, the known and the unknown image in the middle of their sets."
    )
    map_lead = (
        f"Yellow is what supports the class predicted before masking, by {found.method}. Then the same image with "
        "P_j < 0 masked, which keeps what supports the class, and with P_j > 0 masked, which removes it. The images "
        "were drawn at random."
    )
    numbers_lead = (
        "How similar the heatmaps before and after masking are: the rank correlation over all places. Below each mask "
        "is its control, which masks as many entries at random. 95% intervals in brackets."
    )
    rows = [[one.claim, "holds" if one.holds else "does not hold", one.found] for one in claims(found)]
    caption = f"Claims about attention are checked on the {len(found.sets[KNOWN]):,} known images"
    sections = [
        Section(
            "figure-1",
            "Figure 1: does it hold here?",
            table(["the paper’s claim", "here", "found"], rows, caption=caption),
        ),
        Section("energy", "Figure 1A: ΔEnergy of known and unknown images", _energies(found), energy_lead),
    ]
    for name, one in found.sets.items():
        if one.panels:
            body = tag("div", [_panel(found, one, panel) for panel in one.panels], class_="masked-rows")
            lead = map_lead if name == KNOWN else None
            sections.append(Section(f"masked-{name}", f"Figure 1B: masking {name} images", body, lead))
    sections.append(Section("statistics", "Figure 1B: what masking does", _mask_tables(found), numbers_lead))
    return sections


def _energies(found: Figure1) -> Markup:
    auroc, sets = detection(found), found.sets.items()
    chart = histogram_chart(
        [HistogramRow(name, one.delta, i, count(len(one), "image")) for i, (name, one) in enumerate(sets)],
        title="ΔEnergy of known and unknown images",
        x_label="ΔEnergy (larger = closer to the known images)",
        description=f"AUROC {percent(auroc.value)}.",
        width=620,
    )
    middle = []
    for name, one in sets:
        row = int(one.delta.argsort(kind="stable")[len(one) // 2])
        file = tag("span", PurePath(one.names[row]).name, class_="count")
        middle.append(tag("div", tag("h3", f"The middle of the {name} images ", file), energy_figure(one.parts[row])))
    caption = f"Known against unknown: AUROC {percent(auroc.value)} ({100 * auroc.low:.1f} to {100 * auroc.high:.1f})"
    return join(figure(chart, caption), tag("div", middle, class_="panels"))


def _panel(found: Figure1, one: MaskedSet, panel: Panel) -> Markup:
    i, file = panel.row, one.names[panel.row]
    name = PurePath(file).name or file
    first = found.classes[one.results[BEFORE].named[i]]
    cells = [(panel.picture, "the image", [tag("span", name, class_="file", title=file)])]
    for mask, heatmap in panel.maps.items():
        result = one.results[mask]
        named = found.classes[result.named[i]]
        lines = [f"closest class {isolated(named)}", f"similarity {score_value(result.top[i])}"]
        if named != first:
            lines.append(f"{isolated(first)}: {score_value(result.similarity[i])}")
        lines.append(f"energy {score_value(result.energy[i])}")
        if mask != BEFORE:
            lines.append(f"correlation {result.correlation[i]:.2f}".replace("-", "−"))
        facts = [tag("span", mask, class_="verdict none"), *(tag("span", line, class_="what") for line in lines)]
        cells.append((overlay(heatmap, panel.picture), f"what supports {isolated(first)}, {mask}", facts))
    figures = [
        tag(
            "figure",
            tag("img", src=jpeg_uri(image), alt=f"{isolated(name)}: {about}", width=224, height=224),
            tag("figcaption", facts),
            class_="image",
        )
        for image, about, facts in cells
    ]
    return tag("ul", [tag("li", cell) for cell in figures], class_="images masked")


def _mask_tables(found: Figure1) -> Markup:
    columns: list[Child] = ["mask", "masked", "correlation", "class stays", "similarity", "energy"]
    parts = []
    for name, one in found.sets.items():
        rows = [
            [
                mask if mask in (MASK_AGAINST, MASK_FOR) else "as many at random",
                percent(numbers.masked, 0),
                _estimate(numbers.correlation),
                _estimate(numbers.class_stays, "%"),
                _estimate(numbers.similarity, "+.3f"),
                _estimate(numbers.energy, "+.1f"),
            ]
            for mask, numbers in mask_statistics(one).items()
        ]
        caption = f"{count(len(one), f'{name} image')}: what is left of heatmaps and classes, and what changes"
        parts.append(table(columns, rows, caption=caption, numeric=frozenset(range(1, len(columns)))))
        differences = [[key, _estimate(value, "+.2f")] for key, value in correlation_differences(one).items()]
        caption = f"Differences of the correlations on the same {name} images"
        parts.append(table(["masks", "difference"], differences, caption=caption, numeric=frozenset({1})))
    return join(parts)


def _estimate(value: Estimate, form: str = ".2f") -> Markup:
    numbers = [f"{100 * one:.1f}" if form == "%" else f"{one:{form}}".replace("-", "−") for one in value]
    unit = "%" if form == "%" else ""
    return join(tag("span", numbers[0] + unit), tag("span", f"{numbers[1]} to {numbers[2]}", class_="interval"))
