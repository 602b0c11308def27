"""What a run of a benchmark compares: `score` (zero-shot), `tuner/score`, or `{tuner,…}/{score,…}` for every pair.

msp                           zero-shot with msp
ebm/delta-energy              tuned with ebm, scored with delta-energy
coop(epochs=50)/mcm           parameters in parentheses, on either side
{coop,ebm}/{mcm,delta-energy} four methods
locoop                        a tuner alone takes the score that its paper tests it with

A benchmark may have settings for tuners, which hold where the text does not say otherwise: in Setup-II `ebm` stands for
`ebm(weight=2)`, as in the paper.

`paper` stands for every row of the paper's tables of a benchmark.

A comma or slash inside brackets or quotes belongs to what stands there: `neglabel(words=lists/my.txt)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltaenergy.benchmarks.spec import BenchmarkSpec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.classifiers.methods import list_methods, make_method
from deltaenergy.core.specs import cut, format_value, parse, split
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.scores.registry import get_score_class, list_scores, make_score

ZERO_SHOT = "zero-shot"
# Stands for all rows of the benchmark's tables, in --methods.
PAPER = "paper"
# By tuner, then by parameter.
TunerDefaults = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class BenchmarkRow:
    """One row of a benchmark's tables: a tuner (None = zero-shot) and a score, each in its shortest spelling."""

    tuner: str | None
    score: str

    @property
    def label(self) -> str:
        """`score` or `tuner/score`: what a result is called."""
        return self.score if self.tuner is None else f"{self.tuner}/{self.score}"


def chosen_rows(spec: BenchmarkSpec, texts: Sequence[str] | None) -> list[BenchmarkRow]:
    """The rows that `texts` name, without doubles; the benchmark's own where there are none."""
    named = [part for text in texts or spec.methods for part in split(text, ",", "`methods`")]
    rows = [row for part in named for row in (paper_rows(spec) if part == PAPER else [part])]
    return parse_rows(rows, spec.settings)


def paper_rows(spec: BenchmarkSpec) -> list[str]:
    """The methods of every row of the benchmark's tables, in their order, as `methods` takes them.

    Methods that adapt to the stream of test images are none that a benchmark can run.
    """
    if not spec.tables:
        raise InputError(f"`methods` {PAPER}: the paper has no table of {spec.name}. Name methods instead.")
    rows = [row for name in spec.tables for row in paper_table(name).rows]
    return list(dict.fromkeys(row.method for row in rows if not row.saw_stream))


def parse_rows(texts: Sequence[str], settings: TunerDefaults | None = None) -> list[BenchmarkRow]:
    """Rows from the command line or a benchmark's own list, without doubles, in the given order.

    `settings` are the benchmark's for its tuners.
    """
    parts = [part for text in texts for part in split(text, ",", "`methods`")]
    found = dict.fromkeys(method for part in parts for method in _expand(part, settings or {}))
    if not found:
        raise InputError("`methods` is empty. Write for example msp,delta-energy,ebm/delta-energy.")
    return list(found)


def _expand(text: str, settings: TunerDefaults) -> list[BenchmarkRow]:
    sides = cut(text, "/", "method")
    if len(sides) == 1:
        return [_single(one, settings) for one in _alternatives(text)]
    if len(sides) != 2 or not all(map(_alternatives, sides)):
        raise InputError(f"method {text!r} is not of the form score, tuner/score or {{tuner,…}}/{{score,…}}.")
    tuners, scores = map(_alternatives, sides)
    pairs = itertools.product(tuners, scores)
    return [BenchmarkRow(_tuner(tuner, settings), make_score(score).spec) for tuner, score in pairs]


def _single(text: str, settings: TunerDefaults) -> BenchmarkRow:
    names = [part.name for part in parse(text, "method", list_methods())]
    # A plus is part of some scores' names, and joins a term to a tuner. A tuner's own score has the tuner's name.
    name = "+".join(names)
    if name in list_scores() and get_score_class(name).own_to is None:
        return BenchmarkRow(None, make_score(text).spec)
    if names[0] in list_methods():
        return BenchmarkRow(_tuner(text, settings), make_method(text).usual_score)
    hint = did_you_mean(names[0], [*list_scores(), *list_methods()])
    raise InputError(f"Unknown method {text!r}: neither a score nor a tuner.{hint}")


def _alternatives(text: str) -> list[str]:
    return split(text[1:-1], ",", "method") if text[:1] + text[-1:] == "{}" else [text] if text else []


def _tuner(text: str, settings: TunerDefaults) -> str | None:
    """The shortest spelling of a tuner with the benchmark's settings, or None for zero-shot."""
    if text == ZERO_SHOT:
        return None
    parts = []
    for part in parse(text, "method", list_methods()):
        ours = {name: format_value(value) for name, value in settings.get(part.name, {}).items()}
        params = ",".join(f"{name}={value}" for name, value in {**ours, **part.params}.items())
        parts.append(part.name + (f":{part.preset}" if part.preset else "") + (f"({params})" if params else ""))
    return make_method("+".join(parts)).spec
