"""`score --ray`: the same table, its parts made side by side on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.output import stream_rows
from deltaenergy.cli.shell.scored import Records, Run, say_counts, say_promise
from deltaenergy.detector.fiftyone import names_fiftyone
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.data.items import Unreadable


def check_goes_with_ray(detector: str | None, out_file: Path | None, **others: Any) -> None:
    """Raise `InputError` for options that `--ray` cannot do, and for those that it cannot do without."""
    for name, value in others.items():
        if value:
            raise InputError(f"--ray does not go with --{name.replace('_', '-')}: leave one of them out.")
    if detector is None:
        raise InputError(
            "--ray needs --detector: each process loads it. Make one with `deltaenergy calibrate`, or `tune`."
        )
    if out_file is None or names_fiftyone(out_file):
        raise InputError("--ray needs --out FILE.csv, .jsonl or .parquet: the verdicts are put together there.")


def score_with_ray(
    address: str,
    workers: int | None,
    detector: str,
    images: Any,
    out_file: Path,
    place: common.Place,
    top_k: int,
    batch_size: int,
) -> None:
    """Score on Ray, write the table when all parts are there, and say what `score` says."""
    from deltaenergy.scale.ray_score import score_on_ray

    # This process only looks at it; the device is the workers'.
    loaded = common.prepare(common.load_detector(detector, replace(place, device="cpu")))
    run = Run(loaded.classifier, [loaded.score], [loaded], [], top_k=top_k, rejected=[0])
    kept = "The parts that are done are kept: run the same command again to go on."
    with common.progress_bar("Scoring on Ray") as progress, common.keeping(kept):
        parts = score_on_ray(
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
        with parts as found:
            count = stream_rows(out_file, _records(run, found), run.columns)
    err.print(f"{count} image(s) written to {out_file}")
    say_counts(run)
    say_promise(run)
    common.finish(run.unreadable)


def _records(run: Run, parts: Iterator[tuple[pa.Table, list[Unreadable]]]) -> Iterator[Records]:
    """The rows of each part, counted."""
    for table, unreadable in parts:
        records: Records = table.to_pylist()
        run.images += len(records)
        run.skipped += len(unreadable)
        run.unreadable += unreadable
        run.rejected[0] += sum(record["is_ood"] for record in records)
        yield records
