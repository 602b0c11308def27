"""The page of a monitor: whether the images have changed, the rate over time, which classes, which images."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from deltaenergy.data.items import ImageItem
from deltaenergy.detector.verdict import Verdict
from deltaenergy.monitor import FlaggedImage, Monitor, Status
from deltaenergy.report.charts import Curve, Scale, curve_chart, legend, shares
from deltaenergy.report.html import Child, Markup, isolated, join, tag
from deltaenergy.report.images import card, file_link
from deltaenergy.report.page import Section, Tile, detector_page, figure, folded, table, tiles
from deltaenergy.report.words import count, percent, score_value

# Number of classes shown; the others are folded.
CLASSES_SHOWN = 12
# Both charts share the time axis, one above the other.
SIZE = (720, 300)


def monitor_page(monitor: Monitor, folder: Path, title: str | None = None, command: str | None = None) -> str:
    """The whole page as one HTML document; `folder` is where it will be saved, for its links to the files."""
    detector, status = monitor.detector, monitor.status
    sections = [_summary(status)]
    if status.images:
        sections += [_over_time(monitor, status), _classes(monitor)]
    if monitor.history.flagged:
        cards = [tag("li", _card(one, folder)) for one in reversed(monitor.history.flagged)]
        lead = f"The last {count(len(cards), 'rejected image')}, newest first."
        sections.append(Section("images", "Which images", tag("ul", cards, class_="images"), lead))
    return detector_page(title or "Monitor", sections, detector, command=command, guarantee=detector.guarantee)


def _summary(status: Status) -> Section:
    figures = [
        Tile(
            "Verdict", "changed" if status.changed else "no change found" if status.bound < 1 else "nothing to compare"
        ),
        Tile("Images", f"{status.images:,}"),
        Tile("None of these", percent(status.rate), count(status.flagged, "image")),
    ]
    if status.bound < 1:
        figures.append(Tile("Allowed for", percent(status.bound), "by the calibration images"))
    return Section("summary", "Summary", join(tag("p", str(status), class_="answer"), tiles(figures)))


def _over_time(monitor: Monitor, status: Status) -> Section:
    blocks = monitor.history.blocks
    ends = np.cumsum([block.images for block in blocks]).astype(np.float64)
    middles = ends - np.array([block.images for block in blocks]) / 2
    rates = np.array([block.flagged / block.images for block in blocks])
    span = f"{count(len(blocks), 'block')} of {count(monitor.history.block_size, 'image')} in a row"
    time = Scale("images", (0.0, float(ends[-1])))
    rate = curve_chart(
        [Curve("rate", middles, rates, markers=len(blocks) < 40)],
        time,
        shares("none of these", 0, min(1.0, 1.1 * max(float(rates.max()), monitor.bound))),
        title="Share of rejected images over time",
        size=SIZE,
        y_mark=(monitor.bound, "most"),
        description=f"{span}; from {percent(float(rates[0]))} to {percent(float(rates[-1]))}; "
        f"{percent(monitor.bound)} is allowed",
    )
    logs = np.array([(block.rate, block.shift) for block in blocks]) / math.log(10)
    curves = [
        Curve("rate of none of these", ends, logs[:, 0], index=0),
        Curve("shift of the scores", ends, logs[:, 1], index=1),
    ]
    lowest = max(-3.0, min(-0.5, float(logs.min())))
    highest = max(1.15 * status.alarm_level, 1.05 * float(logs.max()))
    evidence = curve_chart(
        curves,
        time,
        Scale("log₁₀ of the evidence", (lowest, highest)),
        title="Evidence of a change over time",
        size=SIZE,
        y_mark=(status.alarm_level, "alarm"),
        description=f"the alarm is at {status.alarm_level:.2f}",
    )
    times = f"The first block ended {blocks[0].time}, the last {blocks[-1].time}."
    lead = (
        "Evidence starts at 1 and grows as images look less like the calibration images. If nothing has changed, the "
        f"probability that it ever reaches the alarm line is at most {percent(status.most_false)}."
    )
    body = join(
        tag("div", figure(rate, f"None of these, in {span}"), class_="panels top"),
        tag("div", figure(join(evidence, legend(curves)), "Evidence"), class_="panels top"),
        tag("p", times, class_="small"),
    )
    return Section("course", "Over time", body, lead)


def _classes(monitor: Monitor) -> Section:
    recent = len(monitor.history.recent)
    before = monitor.images - recent
    rows: list[list[Child]] = [
        [
            change.label,
            f"{change.recent:,}",
            _share(change.recent_flagged, change.recent),
            f"{change.before:,}",
            _share(change.before_flagged, change.before),
            _share(change.recent, recent),
            _share(change.before, before),
        ]
        for change in monitor.history.changes()
    ]

    def shown(part: list[list[Child]]) -> Markup:
        return table(
            ["closest class", "images", "none of these", "images", "none of these", "last", "before"],
            part,
            caption="Classes",
            numeric=frozenset(range(1, 7)),
            groups=[("", 1), (f"last {recent:,}", 2), ("all before", 2), ("share of all", 2)],
        )

    rest = rows[CLASSES_SHOWN:]
    body = join(shown(rows[:CLASSES_SHOWN]), folded(f"{len(rest):,} more", shown(rest)) if rest else None)
    lead = (
        f"The last {count(recent, 'image')} compared with all earlier images; classes with more rejected images "
        "come first."
    )
    return Section("classes", "Which classes", body, lead)


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else "–"


def _card(seen: FlaggedImage, folder: Path) -> Markup:
    if not seen.file:
        # Its name came over the network: it must not link to a file on this disk.
        said = [f"closest class {isolated(seen.label)}", f"score {score_value(seen.score)}", f"image {seen.number:,}"]
        caption = tag("figcaption", [tag("span", text, class_="what") for text in said], tag("span", seen.id))
        return tag("figure", tag("span", "not kept", class_="no-image"), caption, class_="image")
    item = ImageItem(seen.id, Path(seen.id))
    verdict = Verdict(seen.id, seen.label, math.nan, "", seen.score, None, True)
    return card(item, verdict, link=file_link(item, folder), details=f"image {seen.number:,}")
