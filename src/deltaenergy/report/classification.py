"""Classification in a report: accuracy per class, confusions, calibration, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deltaenergy.evaluation.classification import Classification, classification
from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.report.charts import Curve, curve_chart, legend, shares
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.page import Section, figure, folded, table
from deltaenergy.report.words import count, estimate, percent

# With more classes than this, the most frequent mistakes are listed instead of a matrix.
MOST_IN_MATRIX = 16
MOST_LISTED = 30
SHADES = 9
_WORDS = {Group.ID: "known images", Group.SHIFTED: "shifted images"}


def classification_section(evaluation: Evaluation) -> Section | None:
    """The classification section, for known and shifted images; None if no image has a label."""
    found = classification(evaluation)
    if not found:
        return None
    parts: list[Child] = [quality_charts({_WORDS[one.group]: one for one in found})]
    for one in found:
        body, title = join(_class_table(one), _confusion(one)), f"Class by class: {_WORDS[one.group]}"
        parts.append(join(tag("h3", title), body) if one.group is Group.ID else folded(title, body))
    return Section("classes", "Classes", join(parts))


def quality_charts(found: Mapping[str, Classification], *, widest: bool = False) -> Markup:
    """Reliability and risk–coverage curves, one per entry.

    With `widest`, risk and coverage include open images, if there are any.
    """
    return tag("div", _reliability(found), _risk(found, widest), class_="panels top")


def _reliability(found: Mapping[str, Classification]) -> Markup:
    curves = [
        Curve(name, [b.confidence for b in one.bins], [b.accuracy for b in one.bins], index=i, markers=True)
        for i, (name, one) in enumerate(found.items())
    ]
    said = {name: f"ECE {percent(one.ece)}" for name, one in found.items()}
    chart = curve_chart(
        curves,
        shares("confidence"),
        shares("accuracy"),
        title="Reliability diagram",
        description="; ".join(f"{name}: {text}" for name, text in said.items()),
        diagonal=True,
    )
    note = "Is confidence calibrated? On the diagonal, yes; below it, the model is overconfident."
    return figure(join(chart, legend(curves, said)), join("Reliability", tag("span", note, class_="sub")))


def _risk(found: Mapping[str, Classification], widest: bool) -> Markup | None:
    curves: list[Curve] = []
    said: dict[str, str] = {}
    for name, one in found.items():
        for curve in one.risk_coverage[-1:] if widest else one.risk_coverage:
            label = f"{name}: {curve.of}" if widest and len(found) > 1 else curve.of
            curves.append(Curve(label, curve.coverage, curve.risk, index=len(curves)))
            said[label] = f"AURC {percent(curve.aurc)}"
    if not curves:
        return None
    top = max(float(np.max(curve.y)) for curve in curves)
    chart = curve_chart(
        curves,
        shares("share of images kept"),
        shares("mistakes among them", 0, max(0.05, min(1.0, 1.05 * top))),
        title="Risk over coverage",
        description="; ".join(f"{name}: {text}" for name, text in said.items()),
    )
    note = "What does rejecting buy? Mistakes among the images with the highest scores; lower is better."
    return figure(join(chart, legend(curves, said)), join("Risk and coverage", tag("span", note, class_="sub")))


def _class_table(one: Classification) -> Markup:
    """The classes, the least accurate first; long lists are folded."""
    rows: list[list[Child]] = [
        [row.name, f"{row.images:,}", estimate(row.accuracy)]
        for row in sorted(one.classes, key=lambda row: row.accuracy.value)
    ]
    columns = ["class", "images", "accuracy"]

    def of(some: list[list[Child]], caption: str) -> Markup:
        return table(columns, some, caption=caption, numeric=frozenset({1, 2}))

    if len(rows) <= MOST_IN_MATRIX:
        return of(rows, "Accuracy of each class, lowest first")
    others = f"The other {count(len(rows) - MOST_IN_MATRIX, 'class', 'classes')}"
    rest = folded(others, of(rows[MOST_IN_MATRIX:], "Accuracy of the other classes"))
    return join(of(rows[:MOST_IN_MATRIX], f"The {MOST_IN_MATRIX} least accurate classes"), rest)


def _confusion(one: Classification) -> Markup:
    names = list(dict.fromkeys(row.name for row in one.classes))
    named = list(dict.fromkeys([*names, *(row.named for row in one.confusion)]))
    if len(named) <= MOST_IN_MATRIX:
        return _matrix(one, names, named)
    mistakes = sorted((row for row in one.confusion if row.truth != row.named), key=lambda row: -row.images)
    if not mistakes:
        return tag("p", "No class is confused with another.", class_="small")
    rows: list[list[Child]] = [[row.truth, row.named, f"{row.images:,}"] for row in mistakes[:MOST_LISTED]]
    caption = f"The most frequent of {count(len(mistakes), 'mix-up')}" if len(mistakes) > MOST_LISTED else "Mix-ups"
    return table(["class", "predicted class", "images"], rows, caption=caption, numeric=frozenset({2}))


def _matrix(one: Classification, names: list[str], named: list[str]) -> Markup:
    counts = {(row.truth, row.named): row.images for row in one.confusion}
    total = {row.name: row.images for row in one.classes}
    rows: list[list[Child]] = []
    for truth in names:
        line: list[Child] = [truth]
        for other in named:
            number = counts.get((truth, other), 0)
            shade = f"h{int(np.ceil(SHADES * number / total[truth]))}"
            right = " right" if truth == other else ""
            line.append(tag("span", f"{number:,}" if number else "·", class_=f"heat-cell {shade}{right}"))
        rows.append(line)
    columns: list[Child] = ["true ↓  predicted →", *(tag("span", name, class_="upright") for name in named)]
    return table(columns, rows, caption="Confusion matrix: images of each class by predicted class", css="matrix")
