"""The report of an evaluation: question and answer, metrics, classes, curves, images, provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from deltaenergy.detector.names import NamesRule
from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE
from deltaenergy.evaluation.disagreement import disagreement_with, pooled_scores, rank_correlation
from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group
from deltaenergy.evaluation.summary import (
    GROUP_WORDS,
    KEPT,
    best_score,
    headline,
    measured,
    order_of_scores,
    smaller_is_better,
    whole_group,
)
from deltaenergy.report.charts import Curve, HistogramRow, histogram_chart, roc_panel
from deltaenergy.report.classification import classification_section
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import SHOWN, JudgedImage, card, gallery, judged_images, unlisted
from deltaenergy.report.page import (
    Section,
    Tile,
    figure,
    folded,
    provenance_section,
    render_page,
    score_table,
    table,
    tiles,
    unreadable_note,
)
from deltaenergy.report.words import best_in_words, count, estimate, interval, join_names, metric_name, one_in, percent
from deltaenergy.stats.metrics import Estimate

GROUP_COLOURS = {Group.ID: 0, Group.SHIFTED: 2, Group.OPEN: 1}
# Readers cannot distinguish more curves than this in one chart.
MOST_CURVES = 8
MOST_ROC_CHARTS = 6
# With fewer images in a group, one image moves a share by more than three points.
FEW = 30
# Small evaluations show every image; larger ones a row of each kind.
SHOW_ALL_UP_TO = 40
# Among fewer images, every order differs by chance.
LEAST_IMAGES = 3
_SET_WORDS = {
    Group.ID: "images of the classes",
    Group.SHIFTED: "shifted images of the classes",
    Group.OPEN: "images of none of the classes",
}
_HISTOGRAM_LEAD = (
    "Each row of a histogram is one set of images. Scores further right mean that it looks more like the classes. "
)
_ROC_LEAD = (
    "Each point of a ROC curve is a threshold: the share of unknown images that it keeps by mistake (x axis) and of "
    "known images that it keeps (y axis). Closer to the upper left is better; the dotted diagonal is chance."
)


def evaluation_page(
    evaluation: Evaluation, folder: Path, title: str | None = None, more: Sequence[Section] = ()
) -> str:
    """The whole report as one HTML document; `folder` is where it will be saved, for its links to the files.

    `more` sections come after the images.
    """
    provenance = evaluation.provenance
    metrics = [_metrics_section(evaluation), classification_section(evaluation), _roc_section(evaluation)]
    # With few images, the images come first; with many, the numbers.
    small = sum(map(len, evaluation.sets)) <= SHOW_ALL_UP_TO
    images = [_all_images(evaluation)] if small else _chosen_images(evaluation, folder)
    scores = score_table(evaluation.scores, evaluation.thresholds, evaluation.calibrations)
    found = [
        _summary(evaluation),
        *([*images, *metrics] if small else [*metrics, *images]),
        *more,
        _disagreement_section(evaluation),
        _histogram_section(evaluation),
        provenance_section(provenance, scores),
    ]
    classes, date = count(len(evaluation.classes), "class", "classes"), str(provenance["date"])[:10]
    subtitle = f"model {provenance['model']['name']} · {classes} · score {evaluation.primary} · {date}"
    return render_page(title or "Open-world evaluation", subtitle, [one for one in found if one is not None])


def _summary(evaluation: Evaluation) -> Section:
    best = best_in_words(found) if (found := best_score(evaluation)) else None
    fewest = min(sum(map(len, sets)) for group in Group if (sets := evaluation.in_group(group)))
    few = "Too few images for reliable numbers."
    body = join(
        tag("p", _asked(evaluation), class_="answer"),
        tag("p", _found(evaluation), class_="answer"),
        tag("p", tag("strong", best[0]), " ", tag("strong", best[1]), best[2], class_="answer") if best else None,
        tiles(_tiles(evaluation)),
        tag("p", few, class_="small remark") if fewest < FEW else None,
        unreadable_note(evaluation.unreadable),
    )
    return Section("summary", "Summary", body)


def _asked(evaluation: Evaluation) -> Child:
    parts: list[str] = []
    for group, noun, words in (
        (Group.ID, "image", "of these classes"),
        (Group.SHIFTED, "shifted image", "of the same classes"),
        (Group.OPEN, "image", "of none of them"),
    ):
        sets = evaluation.in_group(group)
        if sets:
            total = count(sum(map(len, sets)), noun)
            parts.append(f"{total} {words} ({join_names([one.name for one in sets])})")
    classes = count(len(evaluation.classes), "class", "classes")
    return [
        tag("strong", "Question: "),
        f"does the classifier get the {classes} right ({join_names(list(evaluation.classes))}), and does ",
        evaluation.primary,
        f" reject everything else? Tested on {join_names(parts)}.",
    ]


def _found(evaluation: Evaluation) -> Child:
    numbers = measured(evaluation)
    shares = {column: percent(number.value) for column, number in numbers.items()}
    styles = {Group.ID: "of the known images", Group.SHIFTED: "of the shifted images"}
    named = [
        f"for {shares['accuracy', group]} {words}" for group, words in styles.items() if ("accuracy", group) in shares
    ]
    said = [f"The class is right {' and '.join(named)}."] if named else []
    if opened := numbers.get((KEPT, Group.OPEN)):
        at = f"At the threshold that keeps {percent(evaluation.keep, 0)} of the known images,"
        if evaluation.primary in evaluation.calibrations:
            kept = shares.get((KEPT, Group.ID), percent(0))
            rule = evaluation.calibrations[evaluation.primary]
            which = (
                "At the threshold from class names" if isinstance(rule, NamesRule) else "At the detector’s threshold"
            )
            at = f"{which}, {kept} of the known images are kept, and"
        about = f" ({one_in(opened.value)})" if one_in(opened.value) else ""
        said.append(f"{at} {shares[KEPT, Group.OPEN]}{about} of the unknown images are kept.")
    if (KEPT, Group.SHIFTED) in shares:
        said.append(f"Of the shifted images, {shares[KEPT, Group.SHIFTED]} are kept.")
    if ("auroc", Group.ID) in shares:
        right = f"the score ranks the known one higher in {shares['auroc', Group.ID]} of cases (AUROC)."
        said.append(f"Given one known and one unknown image, {right}")
    return [tag("strong", "Answer: "), " ".join(said)]


def _tiles(evaluation: Evaluation) -> list[Tile]:
    def tile(label: str, value: Estimate, text: str) -> Tile:
        return Tile(label, percent(value.value), f"{interval(value)}, {text}" if value.high > value.low else text)

    by_group = {row.group: row for row in evaluation.accuracy}
    figures = [
        tile(f"Accuracy, {GROUP_WORDS[group]}", row.accuracy, count(row.images, "image"))
        for group in (Group.ID, Group.SHIFTED)
        if (row := by_group.get(group)) is not None
    ]
    found = headline(evaluation, Group.ID)
    if found is not None:
        images = f"{found.closed_images:,} and {found.open_images:,} images"
        figures.append(tile("AUROC, known against unknown", found.metrics["auroc"], images))
        name = next(key for key in found.metrics if key.startswith("fpr"))
        figures.append(tile(f"{metric_name(name)}: unknown images kept", found.metrics[name], "lower is better"))
    return figures


def _metrics_section(evaluation: Evaluation) -> Section | None:
    """Accuracy, then detection: in full for one open set, as an overview for several, the rest folded."""
    accuracy = _accuracy_table(evaluation)
    if not evaluation.detection:
        return Section("metrics", "Accuracy", accuracy) if accuracy else None
    pairs, whole = _pairs_of(evaluation), _whole_groups(evaluation)
    parts: list[Child] = [accuracy]
    folds = list(pairs.values())
    if len({opened for _, opened in pairs}) > 1:
        for closed in whole:
            rows = [row for row in evaluation.detection if row.closed == closed]
            auroc, _, _, fpr, _ = rows[0].metrics
            parts.append(_detection_table(evaluation, rows, [auroc, fpr]))
    else:
        parts += [_detection_table(evaluation, rows) for (closed, _), rows in pairs.items() if closed in whole]
        folds = [rows for (closed, _), rows in pairs.items() if closed not in whole]
    if folds:
        tables = [_detection_table(evaluation, rows) for rows in folds]
        parts.append(folded("All metrics, for each pair of sets", tables))
    parts.append(tag("ul", [tag("li", note) for note in _notes(evaluation)], class_="notes"))
    return Section("metrics", "Metrics", join(parts))


def _accuracy_table(evaluation: Evaluation) -> Markup | None:
    if not evaluation.accuracy:
        return None
    rows: list[list[Child]] = [
        [row.set, row.group.value, f"{row.images:,}", estimate(row.accuracy)] for row in evaluation.accuracy
    ]
    return table(
        ["set", "group", "labelled images", "accuracy"],
        rows,
        caption="Accuracy: the most similar class is the right one",
        numeric=frozenset({2, 3}),
    )


def _pairs_of(evaluation: Evaluation) -> dict[tuple[str, str], list[DetectionRow]]:
    """The rows of every pair of closed and open sets, one per score."""
    pairs: dict[tuple[str, str], list[DetectionRow]] = {}
    for row in evaluation.detection:
        pairs.setdefault((row.closed, row.open), []).append(row)
    return pairs


def _whole_groups(evaluation: Evaluation) -> list[str]:
    return [name for group in (Group.ID, Group.SHIFTED) if (name := whole_group(evaluation, group)) is not None]


def _notes(evaluation: Evaluation) -> list[str]:
    rate = percent(evaluation.keep, 0)
    names = list(evaluation.detection[0].metrics)
    fpr, fpr_ood = metric_name(names[3]), metric_name(names[4])
    notes = [
        "Small numbers are 95% confidence intervals: bootstrap for detection, Wilson for accuracy. They cover only the "
        "uncertainty from the number of images. A dash means that all resamples agree: the sets are too small or too "
        "easy.",
        "AUROC: given one known (or shifted) and one unknown image, how often the score ranks the unknown one lower; "
        "50% is chance.",
        f"{fpr}: share of unknown images kept when {rate} of the known (or shifted) images are kept. {fpr_ood}: share "
        f"of these rejected when {rate} of the unknown images are rejected. Papers report either number as “{fpr}”.",
    ]
    if len(evaluation.scores) > 1:
        notes.append(
            "Scores are ranked by AUROC. Bold is the best in its column. If you choose a score by this table, its "
            "number here is optimistic: confirm the choice on other images."
        )
    return notes


def _detection_table(
    evaluation: Evaluation, rows: Sequence[DetectionRow], metrics: Sequence[str] | None = None
) -> Markup:
    """Metrics of one closed set against one or several open sets, one line per score."""
    metrics = list(rows[0].metrics) if metrics is None else metrics
    opens: dict[str, list[DetectionRow]] = {}
    for row in rows:
        opens.setdefault(row.open, []).append(row)
    lines: dict[str, list[Child]] = {spec: [spec] for spec in order_of_scores(evaluation)}
    for of_set in opens.values():
        for metric in metrics:
            best = (min if smaller_is_better(metric) else max)(row.metrics[metric].value for row in of_set)
            for row in of_set:
                value = row.metrics[metric]
                lines[row.score].append(estimate(value, best=len(of_set) > 1 and value.value == best))
    first = rows[0]
    against = "each open set" if len(opens) > 1 else f"{isolated(first.open)} (open, {first.open_images:,})"
    titles = [f"{metric_name(metric)} {'↓' if smaller_is_better(metric) else '↑'}" for metric in metrics]
    return table(
        ["score", *(titles * len(opens))],
        list(lines.values()),
        caption=f"{isolated(first.closed)} ({first.closed_group.value}, {first.closed_images:,}) against {against}",
        numeric=frozenset(range(1, 1 + len(opens) * len(metrics))),
        # The line of the primary score, where there are others.
        highlighted=frozenset({list(lines).index(evaluation.primary)} if len(lines) > 1 else ()),
        groups=[("", 1), *((name, len(metrics)) for name in opens)] if len(opens) > 1 else (),
    )


def _roc_section(evaluation: Evaluation) -> Section | None:
    pairs = _pairs_of(evaluation)
    if len(pairs) > MOST_ROC_CHARTS:
        # With many sets, only whole groups are drawn; the rest is in the tables.
        pairs = {key: rows for key, rows in pairs.items() if key[0] in _whole_groups(evaluation)}
    panels = [_roc(evaluation, rows) for rows in pairs.values()]
    return Section("roc", "ROC curves", tag("div", panels, class_="panels even"), _ROC_LEAD) if panels else None


def _roc(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    """The curves of one pair of sets: the primary score's on top, and the best of the others."""
    order = list(evaluation.scores)
    areas = {row.score: row.metrics["auroc"].value for row in rows}
    ranking = sorted(rows, key=lambda row: -areas[row.score])
    shown = sorted(ranking, key=lambda row: row.score != evaluation.primary)[:MOST_CURVES]
    curves = [Curve(row.score, *evaluation.ranked(row).roc_curve(), index=order.index(row.score)) for row in shown]
    left_out = len(rows) - len(shown)
    said = f"{count(left_out, 'more score')} with no higher AUROC: see the tables."
    return roc_panel(
        curves,
        rows[0].closed,
        rows[0].open,
        areas={row.score: areas[row.score] for row in ranking},
        keep=evaluation.keep,
        more=tag("p", said, class_="small") if left_out else None,
    )


def _all_images(evaluation: Evaluation) -> Section:
    galleries = [
        gallery(
            f"{isolated(one.name)}: {_SET_WORDS[one.group]}",
            sorted(judged_images(evaluation, one), key=lambda image: -image.verdict.score),
            shown=SHOW_ALL_UP_TO,
        )
        for one in evaluation.sets
    ]
    lead = f"Sorted by {evaluation.primary}, most confident first. Mistakes have a frame."
    return Section("images", "All images", join(galleries), lead)


def _chosen_images(evaluation: Evaluation, folder: Path) -> list[Section]:
    """Mistakes of every kind, the most confident images, and borderline images.

    Further mistakes of each kind are listed, with links relative to `folder`.
    """
    images = [image for one in evaluation.sets for image in judged_images(evaluation, one)]

    def highest(fits: Callable[[JudgedImage], bool]) -> list[JudgedImage]:
        return sorted(filter(fits, images), key=lambda image: -image.verdict.score)

    def lowest(fits: Callable[[JudgedImage], bool]) -> list[JudgedImage]:
        return sorted(filter(fits, images), key=lambda image: image.verdict.score)

    def rejected(group: Group) -> list[JudgedImage]:
        return lowest(lambda image: image.wrongly_rejected and image.group is group)

    named = sorted((image for image in images if image.wrong_class), key=lambda image: -image.verdict.confidence)
    mistakes = [
        join(gallery(heading, chosen, note=note), unlisted(chosen[SHOWN:], folder))
        for heading, chosen, note in (
            ("Unknown images that were kept", highest(lambda image: image.wrongly_kept), "Highest score first."),
            ("Known images that were rejected", rejected(Group.ID), "Lowest score first."),
            ("Shifted images that were rejected", rejected(Group.SHIFTED), "Lowest score first."),
            ("Images given a wrong class", named, "Most confident first."),
        )
        if chosen
    ]
    sure = [
        ("Known images, most confident", highest(lambda image: image.group is Group.ID)),
        ("Shifted images, most confident", highest(lambda image: image.group is Group.SHIFTED)),
        ("Unknown images, most clearly rejected", lowest(lambda image: image.group is Group.OPEN)),
    ]
    threshold = evaluation.thresholds[evaluation.primary]
    if threshold is not None:
        close = sorted(images, key=lambda image: abs(image.verdict.score - threshold))
        sure.append(("Least confident: closest to the threshold", close))
    galleries = join([gallery(heading, chosen) for heading, chosen in sure if chosen])
    return [
        Section(
            "mistakes",
            "Mistakes",
            join(mistakes) or tag("p", "There are none."),
            f"By {evaluation.primary} at its threshold.",
        ),
        Section("images", "Most and least confident images", galleries),
    ]


def _disagreement_section(evaluation: Evaluation) -> Section | None:
    """The primary score and the score that differs most from it; None with one score or very few images."""
    place, values = pooled_scores(evaluation)
    primary = evaluation.primary
    if len(values) < 2 or len(values[primary]) < LEAST_IMAGES:
        return None
    found = disagreement_with(primary, values, SHOWN)
    other, total = found.second, len(values[primary])
    images = {id(one): judged_images(evaluation, one) for one in evaluation.sets}
    cards = []
    for one in found.images:
        in_set, row = place(one.row)
        said = f"above {percent(one.first, 0)} by {primary}, {percent(one.second, 0)} by {other}"
        details = tag("span", f"{isolated(in_set.name)}: {said}", class_="places")
        image = images[id(in_set)][row]
        cards.append(tag("li", card(image.item, image.verdict, image.missed, details=details)))
    alike: list[list[Child]] = [
        [spec, f"{rank_correlation(values[primary], values[spec]):.3f}"]
        for spec in evaluation.scores
        if spec != primary
    ]
    body = join(
        tag("ul", cards, class_="images") if cards else tag("p", f"{primary} and {other} rank these images the same."),
        table(
            ["score", "rank correlation"],
            sorted(alike, key=lambda row: float(str(row[1]))),
            caption=f"How similarly scores rank the images: Spearman’s correlation with {primary}",
            numeric=frozenset({1}),
        ),
    )
    lead = (
        f"Scores have different units, so the rank of an image among all {total:,} is compared. These images "
        f"differ most between {primary} and {other}, the score whose ranking differs most from it. Check images that "
        "one score keeps and another rejects."
    )
    return Section("disagreement", "Where two scores disagree most", body, lead)


def _histogram_section(evaluation: Evaluation) -> Section:
    """Small, and folded if there are several scores."""
    panels = []
    for spec, about in evaluation.scores.items():
        rows = []
        for one in evaluation.sets:
            kept = float(np.mean(~evaluation.is_ood(one, spec)))
            note = f"{one.group.value}, {percent(kept, 0)} of {len(one):,} kept"
            rows.append(HistogramRow(one.name, one.scored.values[spec], GROUP_COLOURS[one.group], note))
        chart = histogram_chart(
            rows,
            title=f"Histogram of {spec}",
            x_label=f"{spec} (larger = more like the known images)",
            threshold=evaluation.thresholds[spec],
            below=NONE_OF_THESE,
            above=KNOWN,
            description="; ".join(f"{isolated(row.label)}: {row.note}" for row in rows),
            width=300,
        )
        panels.append(figure(chart, join(spec, tag("span", about["summary"], class_="sub"))))
    body = tag("div", panels, class_="panels small-charts")
    if len(panels) > 1:
        body = folded(f"The histograms of {count(len(panels), 'score')}", body)
    line = f"The vertical line is the threshold that keeps {percent(evaluation.keep, 0)} of the known images."
    if evaluation.thresholds[evaluation.primary] is None:
        line = "The detector’s score was cross-fitted and has no single threshold, so no line is drawn."
    elif evaluation.primary in evaluation.calibrations:
        line = "The vertical line is the detector’s own threshold."
    return Section("scores", "Scores of every set", body, [_HISTOGRAM_LEAD, line])
