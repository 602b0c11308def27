"""Which methods a run of a benchmark compares: those named, the benchmark's own, or every row of the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence

from deltaenergy.benchmarks.methods import Method, parse_methods
from deltaenergy.benchmarks.spec import BenchmarkSpec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.core.specs import split
from deltaenergy.errors import InputError

# Stands for all rows of the benchmark's tables, in --methods.
PAPER = "paper"


def chosen_methods(spec: BenchmarkSpec, texts: Sequence[str] | None) -> list[Method]:
    """The methods that `texts` name, without doubles; the benchmark's own where there are none."""
    named = [part for text in texts or spec.methods for part in split(text, ",", "--methods")]
    rows = [row for part in named for row in (paper_rows(spec) if part == PAPER else [part])]
    return parse_methods(rows, spec.settings)


def paper_rows(spec: BenchmarkSpec) -> list[str]:
    """The methods of every row of the benchmark's tables, in their order, as `--methods` takes them.

    Methods that adapt to the stream of test images are none that a benchmark can run.
    """
    if not spec.tables:
        raise InputError(f"--methods {PAPER}: the paper has no table of {spec.name}. Name methods instead.")
    rows = [row for name in spec.tables for row in paper_table(name).rows]
    return list(dict.fromkeys(row.method for row in rows if not row.saw_stream))
