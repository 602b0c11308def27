"""One image on a page of explanations: what the model saw, the map over it, what was said, and what lies behind it."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from deltaenergy.explanation.energy import TAU, C, energy_parts, energy_settings, parts_fragment
from deltaenergy.explanation.explain import Explainer
from deltaenergy.explanation.explanation import Explanation, jpeg_uri
from deltaenergy.explanation.targets import SCORE
from deltaenergy.explanation.why_page import why_fragment
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.words import percent, score_value

# Of the most similar classes, so many are told.
NEAREST = 3


def card(
    one: Explanation,
    explainer: Explainer,
    *,
    link: str | None = None,
    truth: str | None = None,
) -> Markup:
    """The image as a panel.

    Args:
        one: the image with its map.
        explainer: that made it.
        link: leads to its file.
        truth: what it is, where the verdict missed that.
    """
    name = PurePath(one.id).name or one.id
    pictures = [
        _picture(jpeg_uri(one.image), f"{isolated(name)}, as the model saw it", link),
        _picture(jpeg_uri(one.overlay()), one.in_words),
    ]
    return tag(
        "article",
        tag("div", pictures, class_="pair"),
        _scale(one),
        tag("div", said(one, truth), class_="said"),
        tag("p", tag("a", name, href=link) if link else name, class_="file", title=one.id),
        tag("details", tag("summary", "The classes and the energy behind it"), behind(one, explainer)),
        class_="explained wrong" if truth else "explained",
    )


def said(one: Explanation, truth: str | None = None) -> list[Child]:
    """The verdict, the class, and the score, in lines."""
    lines: list[Child] = []
    if one.verdict is not None:
        word = ("✕ " if one.verdict.is_ood else "✓ ") + one.verdict.verdict
        lines.append(tag("span", word, class_=f"verdict {'none' if one.verdict.is_ood else 'kept'}"))
    label = isolated(one.label)
    unknown = one.verdict is not None and one.verdict.is_ood
    lines.append(
        tag("span", f"most like {label}" if unknown else f"{label}, {percent(one.confidence, 0)}", class_="what")
    )
    if truth is not None:
        lines.append(tag("span", truth, class_="truth"))
    if one.verdict is not None:
        p = one.verdict.p_value
        numbers = f"score {score_value(one.verdict.score)}" + ("" if p is None else f", p {p:.3f}")
        lines.append(tag("span", numbers, class_="file"))
    return lines


def behind(one: Explanation, explainer: Explainer) -> Markup:
    """Why it was rejected, or else the most similar classes; and ΔEnergy taken apart."""
    classes = explainer.classifier.classes
    detector = explainer.detector
    fitted = detector is not None and detector.scorer.fitted
    tau, c, reset = energy_settings(detector.scorer) if detector is not None and fitted else (TAU, C, 0.0)
    (parts,) = energy_parts(one.similarities[None], classes, tau, c, reset)
    if one.verdict is not None and one.verdict.is_ood and explainer.reasons is not None:
        (why,) = explainer.reasons.of([one.verdict], one.similarities[None], one.features[None])
        return join(why_fragment(why), parts_fragment(parts))
    order = np.argsort(-one.similarities, kind="stable")[:NEAREST]
    nearest = [tag("li", f"{isolated(classes[k])}: {one.similarities[k]:.4f}") for k in order.tolist()]
    return join(tag("p", "Most similar classes"), tag("ol", nearest, class_="rest"), parts_fragment(parts))


def _picture(source: str, words: str, link: str | None = None) -> Markup:
    shown = tag("img", src=source, alt=words, loading="lazy", decoding="async", width=224, height=224)
    return tag("a", shown, href=link) if link else tag("span", shown)


def _scale(one: Explanation) -> Markup:
    """What the colours mean, with the map's own smallest and largest value."""
    what = "speaks for a higher score" if one.target == SCORE else f"speaks for {isolated(one.target)}"
    low, high = (score_value(float(value)) for value in (one.heatmap.min(), one.heatmap.max()))
    return tag(
        "p",
        tag("span", low),
        tag("span", class_="viridis", role="img", aria_label=f"from dark blue, {low}, to yellow, {high}"),
        tag("span", high),
        tag("span", f"{what} ({one.method})", class_="of"),
        class_="scale",
    )
