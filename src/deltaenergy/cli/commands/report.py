"""`deltaenergy report`: tables and plots from a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell.common import err


def report(
    results: Annotated[Path, typer.Argument(help="Folder written by bench.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file. Default: RESULTS/report.html.", show_default=False)
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Also write the tables as Markdown.")] = None,
    latex: Annotated[Path | None, typer.Option("--latex", help="Also write the tables as LaTeX (booktabs).")] = None,
) -> None:
    """Render what bench measured beside the paper's own figures, with curves, intervals and what was skipped."""
    from deltaenergy.benchmarks import formats
    from deltaenergy.benchmarks.results import Results
    from deltaenergy.files import check_writable, write_text
    from deltaenergy.report.benchmark import benchmark_page, benchmark_runs, run_tables

    page = out_file or results / "report.html"
    folder = Results(results)
    runs = benchmark_runs(folder)
    for option, path in (("--out", page), ("--markdown", markdown), ("--latex", latex)):
        if path is not None:
            check_writable(path, option=option)
    write_text(page, benchmark_page(folder))
    written = [page]
    if markdown is not None:
        parts = [f"## {run.title}\n\n" + "\n".join(map(formats.markdown, run_tables(run))) for run in runs]
        write_text(markdown, "\n".join(parts))
        written.append(markdown)
    if latex is not None:
        write_text(latex, "\n".join(formats.latex(table) for run in runs for table in run_tables(run)))
        written.append(latex)
    err.print(f"Written: {', '.join(map(str, written))}")
