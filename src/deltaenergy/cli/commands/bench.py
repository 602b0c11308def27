"""`deltaenergy bench`: run a benchmark, skip what is missing, and go on where an earlier run stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import LARGEST_SEED, check_count, complete_benchmark, complete_score_or_method
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.benchmarks.runner import ProgressStage, Summary
    from deltaenergy.benchmarks.spec import BenchmarkSpec
    from deltaenergy.benchmarks.tables import Table
    from deltaenergy.core.progress import Progress
    from deltaenergy.models.base import Model

SECONDS_PER_LINE = 10


def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="The benchmark, or a .yaml file. Without it, a list.", autocompletion=complete_benchmark),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="As for score; or tiny, which is trained on drawings in seconds. Default: lite; for mini, tiny.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder with the data sets (see data check).")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            autocompletion=complete_score_or_method,
            help="Scores, tuner/score, or {tuner,…}/{score,…}; separated by commas. `paper` stands for every row of "
            "the paper's tables. Default: the benchmark's own.",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help="standard, paper (what the paper states) or croft (what its code does).")
    ] = "standard",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, callback=check_count, help="Images per set at most: a quick look.")
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="For example 1,2. Default: the benchmark's.")] = None,
    out_folder: Annotated[
        Path, typer.Option("--out", "-o", help="Results folder; an existing one is gone on with.")
    ] = (Path("results")),
    search: Annotated[
        bool, typer.Option("--search", help="Search each tuner's grid on validation images; many times as slow.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option("--store", help="Folder for image features. Default: OUT/features.")
    ] = None,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            callback=check_count,
            help="Images per step of the image tower. Default: the protocol's, 32 or 100.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a benchmark and leave its results in a folder, from which `deltaenergy report` makes tables and plots.

    Missing data sets are skipped and named. A run that was interrupted goes on where it stopped.
    """
    from deltaenergy.benchmarks.spec import load_spec

    if name is None:
        _list(json_output)
        return
    spec = load_spec(name)
    place = common.ModelPlace(device, backend, precision, calibrate_on)
    chosen_seeds = _seeds(seeds)
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data} is not a folder.")
    from deltaenergy.benchmarks.runner import run_benchmark
    from deltaenergy.benchmarks.sets import DataRoot

    kept = f"Finished results are in {out_folder}: the same command goes on from there."
    with common.keeping(kept), _announcing() as announce:
        summary = run_benchmark(
            spec,
            lambda: _model(model or spec.model, place, out_folder, announce),
            DataRoot(data),
            out_folder,
            methods=methods,
            protocol=protocol,
            limit=limit,
            seeds=chosen_seeds,
            search=search,
            store=store,
            batch_size=batch_size,
            announce=announce,
        )
    _finish(summary, spec, out_folder, json_output)


def _model(name: str, place: common.ModelPlace, out_folder: Path, announce: ProgressStage) -> Model:
    if name == "tiny":
        from deltaenergy.benchmarks.tiny import load_tiny

        return load_tiny(out_folder / "tiny.safetensors", announce("Training the tiny model"))
    return common.load_model_with_status(name, place)


@contextlib.contextmanager
def _announcing() -> Iterator[ProgressStage]:
    """A bar on standard error that is renamed with every step; where that is not a terminal, lines (`_lines`)."""
    with contextlib.ExitStack() as stack:
        shown: list[contextlib.ExitStack] = []

        def announce(text: str) -> Progress:
            while shown:
                shown.pop().close()
            if not err.is_terminal:
                return _lines(text)
            own = stack.enter_context(contextlib.ExitStack())
            shown.append(own)
            return own.enter_context(common.progress_bar(text))

        yield announce


def _lines(text: str) -> Progress:
    """Tells how far a step is, each time that `SECONDS_PER_LINE` have passed."""
    last = time.monotonic()

    def move(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_PER_LINE:
            last = time.monotonic()
            err.print(f"{text}: {done:,}{'' if total is None else f' of {total:,}'}", markup=False, soft_wrap=True)

    return move


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--seeds {text!r}: write whole numbers separated by commas, such as 1,2,3.") from None
    if not seeds or min(seeds) < 0 or max(seeds) > LARGEST_SEED:
        raise InputError(f"--seeds {text!r}: write whole numbers from 0 to {LARGEST_SEED:,}, separated by commas.")
    return list(dict.fromkeys(seeds))


def _list(json_output: bool) -> None:
    from rich.text import Text

    from deltaenergy.benchmarks.spec import benchmark_names, load_spec

    specs = [load_spec(name) for name in benchmark_names()]
    if json_output:
        common.print_json([{"name": spec.name, "title": spec.title, "about": spec.about} for spec in specs])
        return
    for spec in specs:
        out.print(Text(f"{spec.name:<14}", "bold cyan") + Text(spec.title), soft_wrap=True)


def _print_tables(summary: Summary, out_folder: Path) -> None:
    """The run's tables: for people in a terminal, else as Markdown."""
    from deltaenergy.benchmarks import formats
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.report.benchmark import benchmark_runs, run_tables

    if not summary.computed + summary.found:
        return
    run = next(run for run in benchmark_runs(Results(out_folder)) if run.record == summary.record)
    for table in run_tables(run):
        if out.is_terminal:
            _print_table(table)
        else:
            out.print(formats.markdown(table))


def _print_table(table: Table) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    from deltaenergy.benchmarks import formats

    shown, _ = formats.measured_part(table)
    view = RichTable(title=formats.heading(shown), title_justify="left", box=None, header_style="bold")
    view.add_column("method", overflow="fold")
    for column in shown.columns:
        view.add_column(column.label, justify="right", ratio=1)
    for row in shown.rows:
        view.add_row(Text(row.label), *(Text(formats.cell(shown, row, i)) for i in range(len(shown.columns))))
    out.print(view)


def _finish(summary: Summary, spec: BenchmarkSpec, out_folder: Path, json_output: bool) -> None:
    from dataclasses import asdict

    if json_output:
        common.print_json(
            {
                "results": str(out_folder),
                "computed": summary.computed,
                "found": summary.found,
                "skipped": [asdict(skip) for skip in summary.skips],
                "unreadable": unreadable_records(summary.unreadable.values()),
            }
        )
    else:
        _print_tables(summary, out_folder)
        cases_of: dict[tuple[str, str], list[str]] = {}
        for skip in summary.skips:
            cases_of.setdefault((skip.what, skip.reason), []).append(skip.case)
        for (what, reason), cases in cases_of.items():
            err.print(f"Skipped in {', '.join(cases)}: {what}. {reason}", style="yellow")
        err.print(
            f"{summary.computed} result(s) computed, {summary.found} found in {out_folder}. "
            f"Tables and plots: deltaenergy report {out_folder}"
        )
    if not summary.computed + summary.found:
        raise InputError(f"Nothing of {spec.name} could be run: {summary.skips[0].reason if summary.skips else ''}")
    common.finish(list(summary.unreadable.values()))
