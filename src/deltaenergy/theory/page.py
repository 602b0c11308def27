"""The theory report as one HTML page."""

from __future__ import annotations

from deltaenergy.report.charts import HistogramRow, histogram_chart
from deltaenergy.report.html import Markup, join, tag
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
from deltaenergy.theory.check import TheoryReport
from deltaenergy.theory.figure1 import Figure1
from deltaenergy.theory.figure1_page import figure1_sections


def theory_page(report: TheoryReport, figure1: Figure1 | None = None, command: str = "") -> str:
    """A whole HTML document: the theorems, and Figure 1 where there were unknown images for it."""
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
    if report.hessian is not None:
        checks = [(report.method, report.hessian), (report.method_without or "", report.hessian_without)]
        cells = [
            [name, *(f"{v:.4g}" for v in (h.distance, h.original, h.masked, h.curvature, h.gradient, h.epsilon))]
            for name, h in checks
            if h is not None
        ]
        heads = ["method", "‖H_S − H_S'‖", "‖H_S‖", "‖H_S'‖", "‖∇²L_ΔE‖", "‖∇E_S‖", "ε"]
        content = table(heads, cells, caption="Spectral norms", numeric=frozenset(range(1, 7)))
        sections.append(Section("hessian", "Theorem 4: Hessians on original and masked features", content))
    sections += _tables(report)
    if figure1 is not None:
        made = {**figure1.provenance, "command": command}
        sections += [*figure1_sections(figure1), provenance_section(made, Markup(""))]
    subtitle = f"{report.method} · {report.images} images · τ = {report.tau:g} · p = {report.p:g}"
    note = f" Command: {command}" if command else ""
    return render_page("Theory on this model", subtitle, sections, note=note)


def _tables(report: TheoryReport) -> list[Section]:
    """Theorem 2's rates, the argument for many classes and the Proposition, as far as they were checked."""
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
