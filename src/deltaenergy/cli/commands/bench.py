"""`deltaenergy bench`, `report` and `theory`: the paper's benchmarks with tables and plots, and its theorems."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaenergy.cli.commands.explain import MapMethod
from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, out, print_json, print_table
from deltaenergy.core.text import counted
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.benchmarks.runner import ProgressStage, Summary
    from deltaenergy.core.progress import Progress
    from deltaenergy.models.base import Model
    from deltaenergy.models.on import On

SECONDS_PER_LINE = 10


@command("Research", "deltaenergy bench mini --out results/", "deltaenergy bench setup2 --data DATA --out results/")
def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="Benchmark name or .yaml file; omit it to list them.", autocompletion=o.complete_benchmark),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="As for score; or tiny, which is trained on drawings in seconds.",
            show_default="lite; for mini, tiny",
        ),
    ] = None,
    data: Annotated[Path | None, o.unset(help="Folder of the datasets (see datasets).")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=o.complete_score_or_method,
            help="Scores, METHOD/SCORE, or {METHOD,…}/{SCORE,…}, between commas; paper means all rows of the paper's "
            "tables.",
            show_default="the benchmark's own",
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="standard, paper (what the paper states) or croft (what its code does).")
    ] = "standard",
    limit: Annotated[int | None, o.count(help="Use at most this many images per set.", show_default=False)] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Random seeds, such as 1,2.", show_default="the benchmark's")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Results folder; an existing one is resumed.")] = Path(
        "results"
    ),
    search: Annotated[
        bool, typer.Option("--search", help="Search each method's grid on validation images; many times slower.")
    ] = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Run a benchmark and save its results for `deltaenergy report`.

    Missing datasets are skipped and listed. Run the same command again to resume.
    """
    from deltaenergy.benchmarks.spec import benchmark_names, load_spec

    if name is None:
        specs = [load_spec(one) for one in benchmark_names()]
        if json:
            print_json([{"name": one.name, "title": one.title, "about": one.about} for one in specs])
        else:
            print_table(["name", "title"], [[one.name, one.title] for one in specs], header=False)
        return
    spec = load_spec(name)
    from deltaenergy.models.on import On

    place, chosen_seeds = On.of(on), _seeds(seeds)
    if data is not None and not data.is_dir():
        raise InputError(f"`data` {data} is not a folder.")
    from deltaenergy.benchmarks.runner import run_benchmark
    from deltaenergy.benchmarks.sets import DataRoot

    with _announcing() as announce:
        try:
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
                batch_size=place.batch,
                announce=announce,
            )
        except KeyboardInterrupt as stop:
            stop.add_note(f"Finished results are in {out_folder}: the same command resumes from there.")
            raise
    if json:
        print_json(
            {
                "results": str(out_folder),
                "computed": summary.computed,
                "found": summary.found,
                "skipped": [asdict(skip) for skip in summary.skips],
                "unreadable": results.unreadable_records(summary.unreadable.values()),
            }
        )
    else:
        _print(summary, out_folder)
    if not summary.computed + summary.found:
        raise InputError(f"Nothing of {spec.name} could be run: {summary.skips[0].reason if summary.skips else ''}")
    results.finish(list(summary.unreadable.values()))


def _model(name: str, place: On, out_folder: Path, announce: ProgressStage) -> Model:
    if name == "tiny":
        from deltaenergy.benchmarks.tiny import load_tiny

        return load_tiny(out_folder / "tiny.safetensors", announce("Training the tiny model"))
    return place.load_model(name)


@contextlib.contextmanager
def _announcing() -> Iterator[ProgressStage]:
    """A progress bar on standard error, renamed with every step; lines (`_lines`) if that is not a terminal."""
    from deltaenergy.core.progress import stage

    with contextlib.ExitStack() as shown:

        def announce(text: str) -> Progress:
            shown.close()
            return shown.enter_context(stage(text)) if err.is_terminal else _lines(text)

        yield announce


def _lines(text: str) -> Progress:
    """Print the progress of a step every `SECONDS_PER_LINE`."""
    last = time.monotonic()

    def move(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_PER_LINE:
            last = time.monotonic()
            err.print(f"{text}: {done:,}{'' if total is None else f' of {total:,}'}")

    return move


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"`seeds` {text!r}: write whole numbers separated by commas, such as 1,2,3.") from None
    if not seeds or min(seeds) < 0 or max(seeds) > o.LARGEST_SEED:
        raise InputError(f"`seeds` {text!r}: write whole numbers from 0 to {o.LARGEST_SEED:,}, separated by commas.")
    return list(dict.fromkeys(seeds))


def _print(summary: Summary, out_folder: Path) -> None:
    """Print the run's tables (as Markdown outside a terminal), then what was skipped."""
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.benchmarks.tables import markdown, printed_table
    from deltaenergy.report.benchmark import benchmark_runs, run_tables

    if summary.computed + summary.found:
        run = next(run for run in benchmark_runs(Results(out_folder)) if run.record == summary.record)
        for table in run_tables(run):
            if not out.is_terminal:
                out.print(markdown(table))
                continue
            shown = printed_table(table)
            columns = ["method", *(f">{label}" for label in shown.columns)]
            rows = [[label, *(cell.number + cell.beside for cell in cells)] for label, cells in shown.rows]
            print_table(columns, rows, title=shown.heading)
    cases_of: dict[tuple[str, str], list[str]] = {}
    for skip in summary.skips:
        cases_of.setdefault((skip.what, skip.reason), []).append(skip.case)
    for (what, reason), cases in cases_of.items():
        err.print(f"Skipped in {', '.join(cases)}: {what}. {reason}", style="yellow")
    err.print(
        f"{counted(summary.computed, 'result')} computed, {summary.found} found in {out_folder}. Tables and plots: "
        f"deltaenergy report {out_folder}"
    )


@command(
    "Research",
    "deltaenergy report results/",
    "deltaenergy report results/ --out page.html --out tables.md --out tables.tex",
)
def report(
    results_folder: Annotated[Path, typer.Argument(help="Folder written by bench.", metavar="RESULTS")],
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="FILE.html, or tables as .md or .tex (booktabs); repeat for several.",
            show_default="RESULTS/report.html",
        ),
    ] = None,
) -> None:
    """Write a report of `bench` results next to the paper's numbers."""
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.report import check_report, write_report

    wanted = files or [results_folder / "report.html"]
    for path in wanted:
        check_report(path, "files", (".html", ".htm", ".md", ".tex"))
    for path in wanted:
        write_report(Results(results_folder), path)
    err.print(f"Written: {', '.join(map(str, wanted))}")


@command("Research", "deltaenergy theory detector/ --id good/ --open other/ --report theory.html")
def theory(
    by: Annotated[str, typer.Argument(help="Folder of a detector, from tune or calibrate.", metavar="DETECTOR")],
    known: Annotated[str, typer.Option("--id", help="Images of its classes, one subfolder per class.")],
    unknown: Annotated[
        str | None, o.unset("--open", help="Images of none of its classes, for Theorem 1's pairs and for Figure 1.")
    ] = None,
    against: Annotated[Path | None, o.unset(help="Detector tuned without EBM, for Theorem 4's comparison.")] = None,
    domains: Annotated[bool, typer.Option("--domains", help="--id has DOMAIN/CLASS/ rather than CLASS/.")] = False,
    method: Annotated[MapMethod, typer.Option(help="Heatmap of Figure 1.")] = "auto",
    report: o.ReportOption = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Check the paper's theorems on a detector and your images.

    Figure 1 needs --open: does attention stay where P_j < 0 is masked, and move where P_j > 0 is?
    """
    from deltaenergy.theory import check_paper

    results.check_report(report)
    found = check_paper(by, known, unknown, against=against, domains=domains, method=method, on=on)
    results.write_report(found, report)
    if json:
        print_json({**found.to_dict(), "unreadable": results.unreadable_records(found.unreadable)})
    else:
        for name, sentence in [*found.sentences(), *found.figure_sentences()]:
            out.print(f"{name}: {sentence}")
    results.finish(found.unreadable)
