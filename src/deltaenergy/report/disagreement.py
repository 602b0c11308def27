"""The images on which two scores disagree most, as a section of the evaluation report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deltaenergy.evaluation.disagreement import disagreements, least_alike, pooled_scores, rank_correlation
from deltaenergy.evaluation.results import Evaluation
from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.report.page import Section, table
from deltaenergy.report.pictures import SHOWN, card, pictures_of
from deltaenergy.report.words import percent

# Among fewer images, every order differs by chance.
LEAST_IMAGES = 3


def disagreement_section(evaluation: Evaluation) -> Section | None:
    """The primary score beside the one least like it; None with a single score, or with hardly any image."""
    where, values = pooled_scores(evaluation)
    if len(values) < 2 or len(where) < LEAST_IMAGES:
        return None
    primary = evaluation.primary
    other = next(spec for spec in least_alike(values, [primary]) if spec != primary)
    found = disagreements(values[primary], values[other], SHOWN)
    pictures = {id(one): pictures_of(evaluation, one) for one in evaluation.sets}
    cards = []
    for one in found:
        if not one.difference:
            continue
        in_set, row = where[one.row]
        said = f"above {percent(one.first, 0)} by {primary}, {percent(one.second, 0)} by {other}"
        details = tag("span", f"{isolated(in_set.name)}: {said}", class_="places")
        cards.append(tag("li", card(pictures[id(in_set)][row], details=details)))
    body = join(
        tag("p", f"{primary} and {other} order these pictures alike in every place.")
        if not cards
        else tag("ul", cards, class_="pictures"),
        _likeness(evaluation, values),
    )
    lead = (
        f"Scores have units of their own, so that a picture’s place among all {len(where):,} is compared. These stand "
        f"furthest apart by {primary} and {other}, the score whose order is least like its own. A picture that one "
        "score takes for known and another does not is worth a look: it tells what they attend to."
    )
    return Section("disagreement", "Where two scores disagree most", body, lead)


def _likeness(evaluation: Evaluation, values: Mapping[str, npt.NDArray[np.float64]]) -> Markup:
    rows = [
        [spec, f"{rank_correlation(values[evaluation.primary], values[spec]):.3f}"]
        for spec in evaluation.scores
        if spec != evaluation.primary
    ]
    rows.sort(key=lambda row: float(row[1]))
    return table(
        ["score", "rank correlation"],
        rows,
        caption=f"How alike scores order the pictures: Spearman’s correlation with {evaluation.primary}",
        numeric=frozenset({1}),
    )
