"""What `score` found, on its way out: rows as they come, a table for a terminal, JSON, and the closing line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.output import print_csv, stream_rows, write_rows
from deltaenergy.cli.shell.records import (
    guarantee_record,
    rank_keys,
    record_columns,
    score_keys,
    scored_records,
    unreadable_records,
)
from deltaenergy.cli.shell.text import visible
from deltaenergy.detector.fiftyone import names_fiftyone, write_fiftyone
from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE, verdict_word

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier
    from deltaenergy.data.items import ImageItem, Unreadable
    from deltaenergy.detector.detector import Detector, Verdict
    from deltaenergy.scores.base import Score
    from deltaenergy.scoring import Scored
    from deltaenergy.stats.thresholds import Guarantee

Records = list[dict[str, Any]]


@dataclass
class Run:
    """One run of `score`: how it scores, and what it has met so far.

    Attributes:
        detectors: one per score, or none where there is no threshold.
        fdr: the share of known images among those called none of these, where it decides in place of the threshold.
        keep_verdicts: whether each image and its verdict are needed after their rows are out.
        unreadable: of the calibration and of the scored images.
        judged: images and their verdicts by the first score.
    """

    classifier: Classifier
    scores: list[Score]
    detectors: list[Detector]
    unreadable: list[Unreadable]
    top_k: int = 1
    fdr: float | None = None
    keep_verdicts: bool = False
    images: int = 0
    skipped: int = 0
    rejected: list[int] = field(default_factory=list)
    judged: list[tuple[ImageItem, Verdict]] = field(default_factory=list)

    def records(self, batches: Iterator[Scored]) -> Iterator[Records]:
        """The records of each batch."""
        from deltaenergy.detector.calibration import judge_together

        self.rejected = [0] * len(self.detectors)
        for batch, verdicts in judge_together(self.detectors, batches, self.fdr):
            self.unreadable += batch.unreadable
            self.skipped += len(batch.unreadable)
            self.images += len(batch.items)
            for position, found in enumerate(verdicts):
                self.rejected[position] += sum(verdict.is_ood for verdict in found)
            if self.keep_verdicts:
                self.judged += zip(batch.items, verdicts[0])
            yield scored_records(batch, self.classifier.classes, self.scores, verdicts)

    @property
    def columns(self) -> list[str]:
        """The keys of every record."""
        return record_columns(self.scores, min(self.top_k, len(self.classifier.classes)))


def emit(run: Run, parts: Iterator[Records], out_file: Path | None, json_output: bool) -> None:
    """To a file or a pipe as they come; JSON and a terminal's table need all records."""
    if out_file is not None and names_fiftyone(out_file):
        records = [record for part in parts for record in part]
        _write_fiftyone(run, records, out_file)
        parts, out_file = iter([records]), None
        if not json_output:
            return
    if out_file is not None and not json_output:
        count = stream_rows(out_file, parts, run.columns)
        err.print(f"{count} image(s) written to {out_file}")
        return
    if not json_output and not sys.stdout.isatty():
        print_csv([], run.columns)
        for part in parts:
            print_csv(part, run.columns, header=False)
        return
    records = [record for part in parts for record in part]
    if out_file is not None:
        write_rows(out_file, records, run.columns)
        err.print(f"{len(records)} image(s) written to {out_file}")
    if json_output:
        common.print_json(
            {
                "model": run.classifier.model.describe(),
                "classes_hash": run.classifier.classes_hash,
                "scores": [score.spec for score in run.scores],
                "thresholds": [detector.threshold for detector in run.detectors],
                "guarantees": [guarantee_record(detector) for detector in run.detectors],
                "fdr": run.fdr,
                "images": records,
                "unreadable": unreadable_records(run.unreadable),
                "counts": counts(run),
            }
        )
    else:
        _print_table(run, records)


def _write_fiftyone(run: Run, records: Records, folder: Path) -> None:
    from deltaenergy.files import keeping_result

    told: list[tuple[int, int]] = []
    classes = run.classifier.classes
    keeping_result(folder, lambda place: told.append(write_fiftyone(place, records, classes)), what="The table")
    written, left_out = told[-1]
    err.print(f"{written} image(s) written to {folder}")
    if left_out:
        err.print(f"{left_out} image(s) are no files of their own, and FiftyOne cannot show them.", style="yellow")


def counts(run: Run) -> list[dict[str, Any]]:
    """How many images each score takes for known, how many for none of these, and how many could not be read."""
    return [
        {"score": score.spec, KNOWN: run.images - rejected, NONE_OF_THESE: rejected, "unreadable": run.skipped}
        for score, rejected in zip(run.scores, run.rejected)
    ]


def say_counts(run: Run) -> None:
    """The closing line on standard error."""
    unreadable = f"{run.skipped:,} unreadable"
    if not run.detectors:
        err.print(f"{run.images:,} scored, {unreadable}.")
        err.print("No verdicts without a threshold: add --id DIR, or --detector DIR (see calibrate).", style="dim")
        return
    for score, rejected in zip(run.scores, run.rejected):
        name = f"{score.spec}: " if len(run.scores) > 1 else ""
        err.print(f"{name}{run.images - rejected:,} {KNOWN}, {rejected:,} {NONE_OF_THESE}, {unreadable}.")


def say_promise(run: Run) -> None:
    """What the verdicts promise; of scores that promise the same, once, and with their names if others differ."""
    from deltaenergy.stats.thresholds import percent

    if run.fdr is None:
        promises: dict[Guarantee | None, list[Detector]] = {}
        for one in run.detectors:
            promises.setdefault(one.guarantee, []).append(one)
        for same in promises.values():
            names = ", ".join(one.score.spec for one in same) if len(promises) > 1 else ""
            common.tell_guarantee(same[0], names)
    elif run.detectors:
        count = min(len(one.calibration_scores) for one in run.detectors)
        err.print(
            f"Of the images called {NONE_OF_THESE}, at most {percent(run.fdr)} are known in expectation. "
            f"With {count} calibration images no p-value is below {1 / (count + 1):.2g}: a few unknown images "
            f"among very many are found only with more of them (about 1 / ({run.fdr:g} × their share))."
        )


def _print_table(run: Run, records: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    ranks = [rank_keys(rank) for rank in range(2, min(run.top_k, len(run.classifier.classes)) + 1)]
    table = Table(box=None, header_style="bold")
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("confidence", justify="right")
    for place in range(len(ranks)):
        table.add_column(f"class {place + 2}")
        table.add_column("", justify="right")
    for score in run.scores:
        table.add_column(score.spec, justify="right")
        if run.detectors:
            table.add_column("p", justify="right")
            table.add_column("verdict")
    for record in records:
        cells: list[str | Text] = [visible(record["path"]), visible(record["label"]), f"{record['confidence']:.2f}"]
        for label, confidence in ranks:
            cells += [visible(record[label]), f"{record[confidence]:.2f}"]
        for score in run.scores:
            keys = score_keys(score, run.scores)
            cells.append(f"{record[keys.value]:.4g}")
            if run.detectors:
                is_ood = record[keys.is_ood]
                p_value = record[keys.p_value]
                cells += [
                    "–" if p_value is None else f"{p_value:.3f}",
                    Text(verdict_word(is_ood), "red" if is_ood else "green"),
                ]
        table.add_row(*cells)
    out.print(table)
