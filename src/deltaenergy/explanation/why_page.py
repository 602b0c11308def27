"""Why an image was rejected, as a fragment of a page in the look of the reports."""

from __future__ import annotations

from pathlib import PurePath

from deltaenergy.explanation.why import NearClass, NearImage, ScoreReason, WhyNot
from deltaenergy.report.html import Child, Markup, isolated, tag
from deltaenergy.report.images import jpeg_uri
from deltaenergy.report.page import table
from deltaenergy.report.words import percent, score_value


def why_fragment(why: WhyNot) -> Markup:
    """Nearest classes, p-values, neighbours and words of one image; what is lacking is said."""
    parts: list[Child] = [tag("p", in_words(why)), _classes(why)]
    if len(why.scores) > 1:
        parts.append(_scores(why))
    if why.images:
        parts.append(tag("h4", "The calibration images most like it"))
        parts.append(tag("ul", [tag("li", _neighbour(one)) for one in why.images], class_="pictures"))
    if why.words:
        parts.append(_words(why))
    parts += [tag("p", note, class_="small") for note in why.notes]
    return tag("div", parts, class_="why")


def in_words(why: WhyNot) -> str:
    """The reasons in a sentence or two."""
    nearest, verdict = why.classes[0], why.verdict
    said = "It was rejected" if verdict.is_ood else "It was kept"
    said += "." if verdict.p_value is None else f": its p-value among the known images is {verdict.p_value:.3f}."
    said += f" It is most like {isolated(nearest.name)}, with a similarity of {nearest.similarity:.3f}"
    if nearest.usual is None or nearest.p_value is None:
        said += "."
    elif nearest.similarity < nearest.usual[0]:
        said += f", less than nearly all images that are named so (from {nearest.usual[0]:.3f})."
    else:
        said += f", as images that are named so (half of them above {nearest.usual[1]:.3f})."
    if why.words:
        loudest = why.words[0]
        said += (
            f" The word that speaks loudest against it is “{isolated(loudest.word)}”, with {loudest.similarity:.3f}."
        )
    return said


def _classes(why: WhyNot) -> Markup:
    rows = [[one.name, f"{one.similarity:.3f}", _usual(one), _p_value(one)] for one in why.classes]
    return table(
        ["class", "similarity", "usual, 5 % to 95 %", "p-value"],
        rows,
        caption="The nearest classes, beside calibration images that were named so",
        numeric=frozenset({1, 2, 3}),
    )


def _usual(one: NearClass) -> str:
    if one.usual is None:
        return f"{one.images} images, too few" if one.images else "–"
    return f"{one.usual[0]:.3f} to {one.usual[2]:.3f} ({one.images} images)"


def _p_value(one: NearClass | ScoreReason) -> str:
    return "–" if one.p_value is None else f"{one.p_value:.3f}"


def _scores(why: WhyNot) -> Markup:
    rows = [[one.spec, score_value(one.value), _p_value(one)] for one in why.scores]
    return table(
        ["score", "value", "p-value"],
        rows,
        caption="Its place among the calibration images, by several scores",
        numeric=frozenset({1, 2}),
        highlighted=frozenset({0}),
    )


def _neighbour(one: NearImage) -> Markup:
    name = PurePath(one.name).name or one.name
    alternative = f"{isolated(name)}, a calibration image named {isolated(one.named)}"
    if one.thumbnail:
        shown = tag("img", src=jpeg_uri(one.thumbnail), alt=alternative, width=128, height=128)
    else:
        shown = tag("span", "no picture", class_="no-picture", role="img", aria_label=alternative)
    caption = tag(
        "figcaption",
        tag("span", one.named, class_="what"),
        tag("span", f"cosine {one.cosine:.3f}", class_="what"),
        tag("span", f"score {score_value(one.score)}", class_="file"),
        tag("span", name, class_="file", title=one.name),
    )
    return tag("figure", shown, caption, class_="picture")


def _words(why: WhyNot) -> Markup:
    return table(
        ["word", "similarity", "share"],
        [[one.word, f"{one.similarity:.3f}", percent(one.share)] for one in why.words],
        caption="The negative words that speak loudest: their probability among all classes and words",
        numeric=frozenset({1, 2}),
    )
