"""The first thing a reader sees: what was asked, what was found, and the key figures, in plain words."""

from __future__ import annotations

from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.report.html import Child, Markup, join, tag
from deltaenergy.report.page import Section, Tile, tiles
from deltaenergy.report.provenance import unreadable_note
from deltaenergy.report.ranking import best_score
from deltaenergy.report.words import count, interval, listed, metric_name, one_in, percent
from deltaenergy.stats.metrics import Estimate, proportion_estimate

# With fewer pictures in a group, a share moves by more than three points with each of them.
FEW = 30


def summary_section(evaluation: Evaluation) -> Section:
    """Question, answer and key figures."""
    body = join(
        tag("p", _asked(evaluation), class_="answer"),
        tag("p", _found(evaluation), class_="answer"),
        tag("p", best, class_="answer") if (best := best_score(evaluation)) else None,
        tiles(_tiles(evaluation)),
        _too_few(evaluation),
        unreadable_note(evaluation.unreadable),
    )
    return Section("summary", "Summary", body)


def headline(evaluation: Evaluation, group: Group) -> DetectionRow | None:
    """The row that stands for a group: the primary score, all its sets against all open sets."""
    closed, open_ = pools(evaluation.sets, group), pools(evaluation.sets, Group.OPEN)
    for row in evaluation.detection:
        if closed and open_ and (row.score, row.closed, row.open) == (evaluation.primary, closed[-1], open_[-1]):
            return row
    return None


def _asked(evaluation: Evaluation) -> Child:
    parts: list[str] = []
    for group, words in (
        (Group.ID, "of these classes ({})"),
        (Group.SHIFTED, "of the same classes in another style ({})"),
        (Group.OPEN, "of none of them ({})"),
    ):
        sets = evaluation.in_group(group)
        if sets:
            total = count(sum(map(len, sets)), "picture")
            parts.append(f"{total} {words.format(listed([one.name for one in sets]))}")
    classes = count(len(evaluation.classes), "class", "classes")
    return [
        tag("strong", "Asked: "),
        f"does the classifier name {classes} rightly ({listed(list(evaluation.classes))}), and does the score ",
        evaluation.primary,
        f" notice what is none of them? It was given {listed(parts)}.",
    ]


def _found(evaluation: Evaluation) -> Child:
    return [tag("strong", "Found: "), " ".join([*_accuracy_words(evaluation), *_detection_words(evaluation)])]


def _accuracy_words(evaluation: Evaluation) -> list[str]:
    by_group = {row.group: row.accuracy for row in evaluation.accuracy}  # the last row of a group is its pool
    words = []
    if Group.ID in by_group:
        words.append(f"the class is right for {percent(by_group[Group.ID].value)} of the known pictures")
    if Group.SHIFTED in by_group:
        start = "and" if words else "the class is right"
        words.append(f"{start} for {percent(by_group[Group.SHIFTED].value)} of those in another style")
    return [" ".join(words) + "."] if words else []


def _detection_words(evaluation: Evaluation) -> list[str]:
    words = []
    kept = {group: _kept_share(evaluation, group) for group in Group}
    given = evaluation.primary in evaluation.given_thresholds
    where = (
        "At the detector’s threshold"
        if given
        else f"At the threshold that keeps {percent(evaluation.keep, 0)} of the known pictures"
    )
    if (share := kept[Group.OPEN]) is not None:
        about = f" ({one_in(share)})" if one_in(share) else ""
        own = f"{percent(kept[Group.ID] or 0.0)} of the known pictures are kept, and " if given else ""
        words.append(f"{where}, {own}{percent(share)}{about} of the open pictures are taken for known.")
    if (shifted := kept[Group.SHIFTED]) is not None:
        words.append(f"Of the pictures in another style, {percent(shifted)} are kept.")
    row = headline(evaluation, Group.ID)
    if row is not None:
        words.append(
            f"Shown one known and one open picture, the score ranks them rightly in "
            f"{percent(row.metrics['auroc'].value)} of all cases."
        )
    return words


def kept_estimate(evaluation: Evaluation, group: Group) -> Estimate | None:
    """The share of a group's images that the primary score keeps, with its Wilson interval."""
    sets = evaluation.in_group(group)
    total = sum(map(len, sets))
    if not total:
        return None
    return proportion_estimate(sum(int((~evaluation.is_ood(one)).sum()) for one in sets), total)


def _kept_share(evaluation: Evaluation, group: Group) -> float | None:
    kept = kept_estimate(evaluation, group)
    return None if kept is None else kept.value


def _tiles(evaluation: Evaluation) -> list[Tile]:
    figures = []
    by_group = {row.group: row for row in evaluation.accuracy}
    for group, label in ((Group.ID, "Accuracy, known pictures"), (Group.SHIFTED, "Accuracy, another style")):
        row = by_group.get(group)
        if row is not None:
            note = _noted(row.accuracy, count(row.images, "picture"))
            figures.append(Tile(label, percent(row.accuracy.value), note))
    found = headline(evaluation, Group.ID)
    if found is not None:
        area = found.metrics["auroc"]
        pictures = f"{found.closed_images:,} and {found.open_images:,} pictures"
        figures.append(Tile("AUROC, known against open", percent(area.value), _noted(area, pictures)))
        name = next(key for key in found.metrics if key.startswith("fpr"))
        rate = found.metrics[name]
        label = f"{metric_name(name)}: open pictures kept"
        figures.append(Tile(label, percent(rate.value), _noted(rate, "less is better")))
    return figures


def _too_few(evaluation: Evaluation) -> Markup | None:
    """Say so where the figures mean little."""
    fewest = min(sum(map(len, sets)) for group in Group if (sets := evaluation.in_group(group)))
    if fewest >= FEW:
        return None
    return tag("p", "With so few pictures, these figures illustrate; they do not measure.", class_="small remark")


def _noted(value: Estimate, text: str) -> str:
    return f"{interval(value)}, {text}" if value.high > value.low else text
