"""The worst mistakes of an evaluation, explained: a section for its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deltaenergy.classifiers.base import Classifier
from deltaenergy.core.progress import Progress
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.predictions import Verdict
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import Evaluation, Group
from deltaenergy.explanation.cards import card
from deltaenergy.explanation.page import READING
from deltaenergy.explanation.run import Explainer
from deltaenergy.explanation.targets import CLASS, SCORE
from deltaenergy.report.html import Markup, isolated, join, tag
from deltaenergy.report.images import JudgedImage, judged_images
from deltaenergy.report.page import Section
from deltaenergy.scores.base import Scorer
from deltaenergy.store.store import StoredImage

# What went wrong, what a map should then show, and the worst first.
_KINDS = (
    ("Taken for known: what raised the score", "wrongly_kept", SCORE, lambda p: -p.score),
    ("Taken for none of these: what there was to raise the score", "wrongly_rejected", SCORE, lambda p: p.score),
    ("Given a wrong name: what spoke for it", "wrong_class", CLASS, lambda p: -p.confidence),
)


def mistakes_section(
    evaluation: Evaluation,
    classifier: Classifier,
    most: int,
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Section:
    """Maps for the `most` worst mistakes of each kind, by the primary score at its threshold."""
    pictures = [picture for one in evaluation.sets for picture in judged_images(evaluation, one)]
    parts = []
    for heading, kind, target, worst in _KINDS:
        chosen = sorted((picture for picture in pictures if getattr(picture, kind)), key=worst)[:most]
        if chosen:
            cards = _cards(evaluation, classifier, chosen, target, batch_size, progress)
            parts.append(join(tag("h3", heading), tag("div", cards, class_="explanations")))
    body = join(parts) if parts else tag("p", "There are no mistakes to explain.")
    return Section("explained", "Worst mistakes, explained", body, READING)


def _cards(
    evaluation: Evaluation,
    classifier: Classifier,
    chosen: Sequence[JudgedImage],
    target: str,
    batch_size: int,
    progress: Progress | None,
) -> list[Markup]:
    explained: dict[str, Markup] = {}
    for scorer, group in _by_scorer(evaluation, chosen):
        judge = Detector(classifier, scorer.score, state=scorer.state)
        items = [_with_pixels(picture.item) for picture in group]
        explainer = Explainer(judge, target=target)
        try:
            found = list(explainer.stream(items, batch_size=batch_size, progress=progress))
        except InputError:
            # A score without a gradient: its maps are made by covering parts.
            if explainer.method.name == "occlusion":
                raise
            explainer = Explainer(judge, "occlusion", target)
            found = list(explainer.stream(items, batch_size=batch_size, progress=progress))
        by_id = {one.id: one for one in found}
        for picture in group:
            if picture.item.id in by_id:
                verdict = replace(by_id[picture.item.id], verdict=_verdict(picture))
                explained[picture.item.id] = card(verdict, explainer, truth=_truth(picture))
    return [explained[picture.item.id] for picture in chosen if picture.item.id in explained]


def _by_scorer(evaluation: Evaluation, chosen: Sequence[JudgedImage]) -> list[tuple[Scorer, list[JudgedImage]]]:
    """The images by the scorer of the primary score that judged them: of a cross-fitted score, that of their fold."""
    picture_of = {picture.item.id: picture for picture in chosen}
    found: dict[Scorer, list[JudgedImage]] = {}
    for one in evaluation.sets:
        scorer = one.scored.scorers[evaluation.primary]
        for row, item in enumerate(one.scored.items):
            if item.id not in picture_of:
                continue
            if isinstance(scorer, Scorer):
                judge = scorer
            else:
                (fold,) = scorer.folds_of(range(row, row + 1), known=one.group is Group.ID)
                judge = scorer.scorers[fold]
            found.setdefault(judge, []).append(picture_of[item.id])
    return list(found.items())


def _with_pixels(item: ImageItem) -> ImageItem:
    """An image of a feature store by its file, where that is still there."""
    if not isinstance(item.source, StoredImage):
        return item
    if not Path(item.id).is_file():
        raise InputError(f"Mistakes are explained on the images themselves, and {item.id} is not there any more.")
    return replace(item, source=Path(item.id))


def _verdict(picture: JudgedImage) -> Verdict:
    """What the evaluation said, which has no p-values."""
    return Verdict(picture.item.id, picture.label, picture.confidence, picture.score, None, picture.is_ood)


def _truth(picture: JudgedImage) -> str:
    if picture.truth:
        return f"is {isolated(picture.truth)}"
    return "is none of these" if picture.wrongly_kept else "is one of the classes"
