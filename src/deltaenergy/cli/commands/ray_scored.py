"""`score --ray`: the same table, its parts made side by side on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.results import Rows, print_counts, print_guarantee
from deltaenergy.core.text import counted
from deltaenergy.detector.fiftyone import names_fiftyone
from deltaenergy.detector.verdict import Counts, verdict_columns
from deltaenergy.detector.verdict_files import stream_rows
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import Unreadable


def check_goes_with_ray(detector: str | None, out_file: Path | None, **others: Any) -> None:
    """Raise `InputError` for options that `--ray` cannot be combined with, and for those that it needs."""
    for name, value in others.items():
        if value:
            raise InputError(f"--ray cannot be combined with --{name.replace('_', '-')}: remove one of them.")
    if detector is None:
        raise InputError(
            "--ray needs --detector: each process loads it. Make one with `deltaenergy calibrate`, or `tune`."
        )
    if out_file is None or names_fiftyone(out_file):
        raise InputError("--ray needs --out FILE.csv, .jsonl or .parquet for the verdicts.")


def score_with_ray(
    address: str,
    workers: int | None,
    detector: str,
    images: Any,
    out_file: Path,
    place: common.ModelPlace,
    top_k: int,
    batch_size: int,
) -> None:
    """Score on Ray, write the table when all parts are there, and print what `score` prints."""
    from deltaenergy.scale.ray_score import score_on_ray

    # This process only reads it; the device is the workers'.
    loaded = common.prepare(common.load_detector(detector, replace(place, device="cpu")))
    columns = verdict_columns(min(top_k, len(loaded.classifier.classes)))
    unreadable: list[Unreadable] = []
    rejected = 0

    def rows_of_parts() -> Iterator[Rows]:
        nonlocal rejected
        for table, failed in parts:
            unreadable.extend(failed)
            rows: Rows = table.to_pylist()
            rejected += sum(row["is_ood"] for row in rows)
            yield rows

    kept = "The parts that are done are kept: run the same command again to resume."
    with common.progress_bar("Scoring on Ray") as progress, common.keeping(kept):
        scoring = score_on_ray(
            loaded,
            detector,
            images,
            out_file,
            address=address,
            workers=workers,
            device=place.device,
            batch_size=batch_size,
            top_k=top_k,
            progress=progress,
        )
        with scoring as parts:
            count = stream_rows(out_file, rows_of_parts(), columns)
    err.print(f"{counted(count, 'image')} written to {out_file}")
    print_counts(Counts(count, rejected, len(unreadable)))
    print_guarantee(loaded)
    common.finish(unreadable)
