"""The report of an evaluation: what was asked and found, metrics, classes, curves, pictures, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE
from deltaenergy.evaluation.disagreement import disagreements, least_alike, pooled_scores, rank_correlation
from deltaenergy.evaluation.results import DetectionRow, Evaluation, Group, pools
from deltaenergy.report.charts import Curve, HistogramRow, curve_chart, histogram_chart, legend_key
from deltaenergy.report.charts import percent as percent_tick
from deltaenergy.report.classification import classification_section
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import SHOWN, Picture, card, gallery, others, pictures_of
from deltaenergy.report.page import (
    Section,
    Tile,
    figure,
    provenance_section,
    render_page,
    score_table,
    table,
    tiles,
    unreadable_note,
)
from deltaenergy.report.words import (
    count,
    estimate,
    interval,
    listed,
    metric_name,
    one_in,
    percent,
    points,
    smaller_is_better,
)
from deltaenergy.stats.metrics import Estimate, paired_differences, proportion_estimate

GROUP_COLOURS = {Group.ID: 0, Group.SHIFTED: 2, Group.OPEN: 1}
# More curves than this in one chart cannot be told apart.
MOST_CURVES = 8
MOST_ROC_CHARTS = 6
# From this AUROC on, the corner is drawn again, enlarged.
NEAR_PERFECT = 0.97

_HISTOGRAM_LEAD = (
    "In a histogram, each row is one set of pictures; the further its hill lies to the right, the more it looks like "
    "the classes. "
)
_ROC_LEAD = (
    "In a ROC curve, every threshold is a point: how many open pictures are kept by mistake (across) for how many "
    "known pictures are kept (up). The further it bends to the upper left, the better; the dotted diagonal is chance."
)
# With fewer pictures in a group, a share moves by more than three points with each of them.
FEW = 30
# Small evaluations show every picture; larger ones a row of each kind.
SHOW_ALL_UP_TO = 40
_GROUP_WORDS = {
    Group.ID: "pictures of the classes",
    Group.SHIFTED: "the classes in another style",
    Group.OPEN: "pictures of none of the classes",
}
# Among fewer images, every order differs by chance.
LEAST_IMAGES = 3


def evaluation_page(
    evaluation: Evaluation,
    title: str | None = None,
    folder: Path | None = None,
    *,
    more: Sequence[Section] = (),
) -> str:
    """The whole report as one HTML document; `folder` is where it will lie, for its links to the files.

    Sections that others made, `more`, stand after the pictures.
    """
    made = evaluation.provenance
    sections = []
    if evaluation.detection:
        sections.append(metrics_section(evaluation))
    elif evaluation.accuracy:
        sections.append(Section("metrics", "Accuracy", accuracy_table(evaluation)))
    if named := classification_section(evaluation):
        sections.append(named)
    if curves := _roc_charts(evaluation):
        sections.append(Section("roc", "ROC curves", _panels(curves), _ROC_LEAD))
    # A handful of pictures speaks for itself and comes first; of many, the figures do.
    pictures = picture_sections(evaluation, folder)
    sections = [*pictures, *sections] if is_small(evaluation) else [*sections, *pictures]
    sections += more
    if apart := disagreement_section(evaluation):
        sections.append(apart)
    sections.append(_histogram_section(evaluation))
    sections.insert(0, summary_section(evaluation))
    scores = score_table(evaluation.scores, evaluation.thresholds, evaluation.given_thresholds)
    sections.append(provenance_section(made, scores))
    subtitle = " · ".join(
        [
            f"model {made['model']['name']}",
            count(len(evaluation.classes), "class", "classes"),
            f"score {evaluation.primary}",
            str(made["date"])[:10],
        ]
    )
    return render_page(
        title or "Open-world evaluation",
        subtitle,
        sections,
        footer=f"Made by deltaenergy {made['versions']['deltaenergy']}. This file is complete in itself: it loads "
        "nothing from the network.",
    )


def _panels(figures: list[Markup]) -> Markup:
    """Charts of one kind, in rows whose axes are level."""
    return tag("div", figures, class_="panels even")


def _histogram_section(evaluation: Evaluation) -> Section:
    """Small, and folded if there are several: figures come first, and few readers look at every score."""
    panels = _histograms(evaluation)
    body = tag("div", panels, class_="panels small-charts")
    if len(panels) > 1:
        body = tag("details", tag("summary", f"The histograms of {count(len(panels), 'score')}"), body)
    return Section("scores", "Scores of every set", body, [_HISTOGRAM_LEAD, _threshold_words(evaluation)])


def _threshold_words(evaluation: Evaluation) -> str:
    if evaluation.thresholds[evaluation.primary] is None:
        return "The detector’s score was cross-fitted and has no single threshold: no line is drawn."
    if evaluation.primary in evaluation.given_thresholds:
        return "The upright line is the detector’s own threshold."
    return f"The upright line is the threshold that keeps {percent(evaluation.keep, 0)} of the known pictures."


def _histograms(evaluation: Evaluation) -> list[Markup]:
    panels = []
    for spec, about in evaluation.scores.items():
        rows = []
        for one in evaluation.sets:
            values = one.scored.values[spec]
            kept = float(np.mean(~evaluation.is_ood(one, spec)))
            note = f"{one.group.value}, {percent(kept, 0)} of {len(one):,} kept"
            rows.append(HistogramRow(one.name, values, GROUP_COLOURS[one.group], note))
        said = "; ".join(f"{isolated(row.label)}: {row.note}" for row in rows)
        chart = histogram_chart(
            rows,
            title=f"Histogram of {spec}",
            x_label=f"{spec} (larger = more like the known)",
            threshold=evaluation.thresholds[spec],
            below=NONE_OF_THESE,
            above=KNOWN,
            description=said,
            width=300,
        )
        panels.append(figure(chart, join(spec, tag("span", about["summary"], class_="sub"))))
    return panels


def _roc_charts(evaluation: Evaluation) -> list[Markup]:
    pairs = pairs_of(evaluation)
    if len(pairs) > MOST_ROC_CHARTS:
        # Of many sets, only what stands for a whole group is drawn; the others are in the tables.
        pairs = {key: rows for key, rows in pairs.items() if key[0] in whole_groups(evaluation)}
    return [_roc_panel(evaluation, rows) for rows in pairs.values()]


def _roc_panel(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    order = list(evaluation.scores)
    ranking = sorted(rows, key=lambda row: -row.metrics["auroc"].value)
    shown = [row for row in ranking if row.score == evaluation.primary]
    shown += [row for row in ranking if row.score != evaluation.primary][: MOST_CURVES - 1]
    curves = []
    for row in shown:
        x, y = evaluation.ranked(row).roc_curve()
        curves.append(Curve(row.score, x, y, index=order.index(row.score)))
    closed, opened = isolated(rows[0].closed), isolated(rows[0].open)
    corner = _corner(curves, evaluation.keep) if ranking[0].metrics["auroc"].value >= NEAR_PERFECT else None
    chart = curve_chart(
        curves,
        title=f"ROC curves of {closed} against {opened}",
        description="; ".join(f"{row.score}: AUROC {percent(row.metrics['auroc'].value)}" for row in ranking),
        x_label=f"share of {opened} kept",
        y_label=f"share of {closed} kept",
        x_range=(0, 1),
        y_range=(0, 1),
        x_format=percent_tick,
        y_format=percent_tick,
        diagonal=True,
        y_mark=(evaluation.keep, percent(evaluation.keep, 0)),
        height=330,
    )
    drawn = {row.score for row in shown}
    legend = [
        tag(
            "li",
            legend_key(order.index(row.score)),
            tag("span", row.score, class_="name"),
            tag("span", percent(row.metrics["auroc"].value), class_="figure"),
        )
        for row in ranking
        if row.score in drawn
    ]
    left_out = len(rows) - len(shown)
    said = f"{count(left_out, 'more score')} with no higher AUROC: see the tables."
    more = tag("p", said, class_="small") if left_out else None
    caption = join(f"{closed} against {opened}", tag("span", "AUROC beside each name", class_="sub"))
    return figure(join(chart, corner, tag("ul", legend, class_="legend"), more), caption)


def _corner(curves: list[Curve], keep: float) -> Markup | None:
    """The upper left corner, enlarged: where all curves are near it, the whole square shows nothing."""
    reach = max(1 - keep, min(float(np.interp(keep, curve.y, curve.x)) for curve in curves))
    side = next((side for side in (0.02, 0.05, 0.1, 0.2) if side >= 1.5 * reach), None)
    if side is None:
        return None
    parts = []
    for curve in curves:
        x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
        enters = float(np.interp(1 - side, y, x))
        if enters >= side:
            continue
        inside = (x <= side) & (y >= 1 - side)
        leaves = max(1 - side, float(np.interp(side, x, y)))
        parts.append(Curve(curve.label, [enters, *x[inside], side], [1 - side, *y[inside], leaves], index=curve.index))
    return curve_chart(
        parts,
        title=f"The corner of {percent(side, 0)}, enlarged",
        x_label="the same, enlarged corner",
        y_label="",
        x_range=(0, side),
        y_range=(1 - side, 1),
        x_format=percent_tick,
        y_format=percent_tick,
        y_mark=(keep, percent(keep, 0)),
        height=240,
    )


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


def ranked_scores(evaluation: Evaluation) -> list[DetectionRow]:
    """The rows of all ID against all open images, the best AUROC first."""
    closed, opened = pools(evaluation.sets, Group.ID), pools(evaluation.sets, Group.OPEN)
    rows = [
        row for row in evaluation.detection if closed and opened and (row.closed, row.open) == (closed[-1], opened[-1])
    ]
    return sorted(rows, key=lambda row: -row.metrics["auroc"].value)


def order_of_scores(evaluation: Evaluation) -> list[str]:
    """The scores, best first; in their own order where nothing ranks them."""
    ranked = [row.score for row in ranked_scores(evaluation)]
    return [*ranked, *(spec for spec in evaluation.scores if spec not in ranked)]


def best_score(evaluation: Evaluation) -> Child:
    """`best_in_words` for a page."""
    found = best_in_words(evaluation)
    if found is None:
        return None
    # Lines may break between the two.
    of_all, name = found[0].split(": ", 1)
    return [tag("strong", of_all, ":"), " ", tag("strong", name), found[1]]


def best_in_words(evaluation: Evaluation) -> tuple[str, str] | None:
    """The best score, and its interval, the next, and what the paired interval of their difference says."""
    rows = ranked_scores(evaluation)
    if len(rows) < 2:
        return None
    best, next_ = rows[:2]
    area = best.metrics["auroc"]
    resamples = int(evaluation.provenance.get("resamples") or 1000)
    change = paired_differences(evaluation.pair(next_), evaluation.pair(best), resamples=resamples)["auroc"]
    lead = f"{points(change.value)} ({points(change.low)} to {points(change.high)})"
    if change.value == 0:
        verdict = f"The next, {next_.score}, does as well on these pictures."
    elif change.low > 0:
        verdict = f"Its lead over the next, {next_.score}, is {lead}: more than chance would give."
    else:
        verdict = f"Its lead over the next, {next_.score}, is {lead}: these pictures cannot tell the two apart."
    within = f" ({interval(area)})" if area.high > area.low else ""
    return (
        f"Best of {len(rows)} scores: {best.score}",
        f", which ranks a known above an open picture in {percent(area.value)}{within} of all cases. {verdict}",
    )


def accuracy_table(evaluation: Evaluation) -> Markup | None:
    """Accuracy of every labelled set."""
    if not evaluation.accuracy:
        return None
    rows: list[list[Child]] = [
        [row.set, row.group.value, f"{row.images:,}", estimate(row.accuracy)] for row in evaluation.accuracy
    ]
    return table(
        ["set", "group", "labelled pictures", "accuracy"],
        rows,
        caption="Accuracy: the most similar class is the right one",
        numeric=frozenset({2, 3}),
    )


def _ranked(evaluation: Evaluation, rows: list[DetectionRow]) -> list[DetectionRow]:
    order = order_of_scores(evaluation)
    return sorted(rows, key=lambda row: order.index(row.score))


def metrics_section(evaluation: Evaluation) -> Section:
    """Accuracy, then detection: against one open set in full, against several as an overview, the rest folded away."""
    pairs = pairs_of(evaluation)
    whole = whole_groups(evaluation)
    several_open = len({name for _, name in pairs}) > 1
    parts: list[Child] = [accuracy_table(evaluation)]
    if several_open:
        parts += [_overview_table(evaluation, closed) for closed in whole]
        folded = list(pairs.values())
    else:
        parts += [_detection_table(evaluation, rows) for (closed, _), rows in pairs.items() if closed in whole]
        folded = [rows for (closed, _), rows in pairs.items() if closed not in whole]
    if folded:
        tables = [_detection_table(evaluation, rows) for rows in folded]
        parts.append(tag("details", tag("summary", "All metrics, for each pair of sets"), tables))
    parts.append(tag("ul", [tag("li", note) for note in _notes(evaluation)], class_="notes"))
    return Section("metrics", "Metrics", join(parts))


def pairs_of(evaluation: Evaluation) -> dict[tuple[str, str], list[DetectionRow]]:
    """The rows of every pair of closed and open sets, one per score."""
    pairs: dict[tuple[str, str], list[DetectionRow]] = {}
    for row in evaluation.detection:
        pairs.setdefault((row.closed, row.open), []).append(row)
    return pairs


def whole_groups(evaluation: Evaluation) -> list[str]:
    """The names that stand for all ID sets and for all shifted sets."""
    return [names[-1] for group in (Group.ID, Group.SHIFTED) if (names := pools(evaluation.sets, group))]


def _notes(evaluation: Evaluation) -> list[str]:
    rate = percent(evaluation.keep, 0)
    names = list(evaluation.detection[0].metrics)
    fpr, fpr_ood = metric_name(names[3]), metric_name(names[4])
    notes = [
        "Small figures are 95\u00a0% intervals: bootstrap for detection, Wilson for accuracy. They tell the doubt that "
        "comes from the number of pictures, and from nothing else. A dash means that all resamples agree: the sets are "
        "too small or too easy to tell more.",
        "AUROC: shown one closed and one open picture, how often the score ranks them rightly; 50\u00a0% is chance.",
        f"{fpr}: share of open pictures kept when {rate} of the closed ones are kept. {fpr_ood}: share of closed "
        f"pictures rejected when {rate} of the open ones are rejected. Papers give either number as “{fpr}”.",
    ]
    if len(evaluation.scores) > 1:
        notes.append(
            "Scores are ranked by AUROC. Bold is the best of its column. To choose a score by this table and then "
            "quote its figure from this table is optimistic: confirm the choice on other pictures."
        )
    return notes


def _overview_table(evaluation: Evaluation, closed: str) -> Markup:
    """AUROC and FPR of one closed set against every open set, all scores."""
    rows = [row for row in evaluation.detection if row.closed == closed]
    names = [list(rows[0].metrics)[i] for i in (0, 3)]
    opens = list(dict.fromkeys(row.open for row in rows))
    found = {(row.score, row.open): row.metrics for row in rows}
    columns: list[Child] = ["score"]
    specs = order_of_scores(evaluation)
    best: dict[tuple[str, str], float] = {}
    for name in opens:
        for metric in names:
            columns.append(_titled(metric))
            best[name, metric] = _best(metric, [row for row in rows if row.open == name])
    cells: list[list[Child]] = []
    for spec in specs:
        line: list[Child] = [spec]
        for (name, metric), value in best.items():
            measured = found[spec, name][metric]
            line.append(estimate(measured, best=len(evaluation.scores) > 1 and measured.value == value))
        cells.append(line)
    first = rows[0]
    return table(
        columns,
        cells,
        caption=f"{isolated(closed)} ({first.closed_group.value}, {first.closed_images:,}) against each open set",
        numeric=frozenset(range(1, len(columns))),
        highlighted=_chosen(evaluation, specs),
        groups=[("", 1), *((name, len(names)) for name in opens)],
    )


def _best(metric: str, rows: list[DetectionRow]) -> float:
    return (min if smaller_is_better(metric) else max)(row.metrics[metric].value for row in rows)


def _titled(metric: str) -> str:
    return f"{metric_name(metric)} {'↓' if smaller_is_better(metric) else '↑'}"


def _chosen(evaluation: Evaluation, specs: list[str]) -> frozenset[int]:
    """The line of the primary score, where there are others."""
    return frozenset({specs.index(evaluation.primary)} if len(specs) > 1 else ())


def _detection_table(evaluation: Evaluation, rows: list[DetectionRow]) -> Markup:
    rows = _ranked(evaluation, rows)
    names = list(rows[0].metrics)
    best = {name: _best(name, rows) for name in names}
    several = len(rows) > 1
    cells: list[list[Child]] = [
        [row.score, *(estimate(row.metrics[n], best=several and row.metrics[n].value == best[n]) for n in names)]
        for row in rows
    ]
    first = rows[0]
    closed = f"{isolated(first.closed)} ({first.closed_group.value}, {first.closed_images:,})"
    return table(
        ["score", *map(_titled, names)],
        cells,
        caption=f"{closed} against {isolated(first.open)} (open, {first.open_images:,})",
        numeric=frozenset(range(1, len(names) + 1)),
        highlighted=_chosen(evaluation, [row.score for row in rows]),
    )


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
