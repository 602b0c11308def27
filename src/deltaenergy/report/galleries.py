"""Which pictures of an evaluation its report shows: mistakes of every kind, the surest, and the closest calls."""

from __future__ import annotations

from pathlib import Path

from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.report.html import isolated, join, tag
from deltaenergy.report.page import Section
from deltaenergy.report.pictures import SHOWN, Picture, gallery, others, pictures_of

# Small evaluations show every picture; larger ones a row of each kind.
SHOW_ALL_UP_TO = 40
_GROUP_WORDS = {
    Group.ID: "pictures of the classes",
    Group.SHIFTED: "the classes in another style",
    Group.OPEN: "pictures of none of the classes",
}


def is_small(evaluation: Evaluation) -> bool:
    """Whether there are few enough pictures to show them all."""
    return sum(map(len, evaluation.sets)) <= SHOW_ALL_UP_TO


def picture_sections(evaluation: Evaluation, folder: Path | None = None) -> list[Section]:
    """All pictures of a small evaluation; mistakes, and the most and least confident ones, of a larger one.

    Mistakes beyond the first of each kind are listed, with links from `folder`, where the page will lie.
    """
    by_set = {one.name: pictures_of(evaluation, one) for one in evaluation.sets}
    if is_small(evaluation):
        galleries = [
            gallery(
                f"{isolated(one.name)}: {_GROUP_WORDS[one.group]}",
                sorted(by_set[one.name], key=lambda picture: -picture.score),
                shown=SHOW_ALL_UP_TO,
            )
            for one in evaluation.sets
        ]
        lead = f"Sorted by {evaluation.primary}, most confident first. Mistakes have a frame."
        return [Section("pictures", "All pictures", join(galleries), lead)]
    pictures = [picture for found in by_set.values() for picture in found]
    return [_mistakes(evaluation, pictures, folder), _confident(evaluation, pictures)]


def _mistakes(evaluation: Evaluation, pictures: list[Picture], folder: Path | None) -> Section:
    def found(group: Group | None, test: str, *, lowest: bool) -> list[Picture]:
        chosen = [p for p in pictures if (group is None or p.group is group) and getattr(p, test)]
        return sorted(chosen, key=lambda p: p.score if lowest else -p.score)

    kinds = [
        ("Open pictures taken for known", found(Group.OPEN, "wrongly_kept", lowest=False), "Highest score first."),
        (
            "Known pictures taken for none of these",
            found(Group.ID, "wrongly_rejected", lowest=True),
            "Lowest score first.",
        ),
        (
            "Pictures in another style taken for none of these",
            found(Group.SHIFTED, "wrongly_rejected", lowest=True),
            "Lowest score first.",
        ),
        (
            "Pictures given a wrong name",
            sorted((p for p in pictures if p.wrong_class), key=lambda p: -p.confidence),
            "Most confident first.",
        ),
    ]
    parts = [
        join(gallery(heading, chosen, note=note), others(chosen[SHOWN:], folder))
        for heading, chosen, note in kinds
        if chosen
    ]
    body = join(parts) if parts else tag("p", "There are none.")
    return Section("mistakes", "Mistakes", body, f"By {evaluation.primary} at its threshold.")


def _confident(evaluation: Evaluation, pictures: list[Picture]) -> Section:
    threshold = evaluation.thresholds[evaluation.primary]

    def of(group: Group) -> list[Picture]:
        return [picture for picture in pictures if picture.group is group]

    kinds = [
        ("Known pictures, most confident", sorted(of(Group.ID), key=lambda p: -p.score)),
        ("Pictures in another style, most confident", sorted(of(Group.SHIFTED), key=lambda p: -p.score)),
        ("Open pictures, most clearly none of these", sorted(of(Group.OPEN), key=lambda p: p.score)),
    ]
    if threshold is not None:
        close = sorted(pictures, key=lambda p: abs(p.score - threshold))
        kinds.append(("Least confident: closest to the threshold", close))
    parts = [gallery(heading, chosen) for heading, chosen in kinds if chosen]
    return Section("pictures", "Most and least confident pictures", join(parts))
