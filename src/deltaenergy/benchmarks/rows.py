"""What a run of a benchmark compares: `score` (zero-shot), `tuner/score`, or `{tuner,…}/{score,…}` for every pair.

msp                           zero-shot with msp
ebm/delta-energy              tuned with ebm, scored with delta-energy
coop(context_length=4)/mcm    parameters in parentheses, on either side
{coop,ebm}/{mcm,delta-energy} four methods
locoop                        a tuner without a score gets the score of its paper

A benchmark has default settings for its rows: in Setup-II `ebm` means `ebm(weight=2)`, as in the paper. A case may have
others.

`paper` means every row of the paper's tables of a benchmark.

A comma or slash inside brackets or quotes is part of the value: `neglabel(words=lists/my.txt)`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deltaenergy.benchmarks.spec import BenchmarkSpec, PartSettings, RowSettings
from deltaenergy.benchmarks.tables import Row, Table, paper_table
from deltaenergy.classifiers.methods import METHODS, Method, Term, TuningPart, list_methods, make_method
from deltaenergy.core.specs import Named, Settings, cut, format_value, parse, split
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.scores.registry import get_score_class, list_scores, make_score
from deltaenergy.training.recipe import make_recipe

ZERO_SHOT = "zero-shot"
# All rows of the benchmark's tables, in --methods.
PAPER = "paper"
NO_SETTINGS = RowSettings()


@dataclass(frozen=True)
class BenchmarkRow:
    """One row of a benchmark's tables: a tuning method (None = zero-shot) and a score, with the table's settings.

    Attributes:
        label: `score` or `tuner/score` in their shortest spelling: the name of a result, the same in every case.
        method: knows which parameters a search fixes and which it tries.
        score: its shortest spelling.
        templates: the prompts of a zero-shot classifier, if the table's differ from the benchmark's.
        recipe: changes to the training.
        typed: the texts of tuner and score, without the table's settings.
    """

    label: str
    method: Method | None = dataclasses.field(compare=False)
    score: str = dataclasses.field(compare=False)
    templates: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    typed: tuple[str, str] = dataclasses.field(default=(ZERO_SHOT, ""), compare=False, repr=False)

    @property
    def tuner(self) -> str | None:
        """The shortest spelling of the tuning method."""
        return None if self.method is None else self.method.spec

    @property
    def grids(self) -> dict[str, Any]:
        """The table's grids, by tuning method or term."""
        return {part.name: [dict(grid) for grid in part.grids] for part in self._parts if part.grids is not None}

    def fixed(self, classes: int) -> list[str]:
        """Parameters of the grid that are fixed because they were given."""
        return [
            f"{part.name}.{name}"
            for part in self._parts
            for name in sorted(part.fixed)
            if name in {axis for grid in part.grids or (part.grid_for(classes),) for axis in grid}
        ]

    @property
    def _parts(self) -> tuple[TuningPart, ...]:
        return () if self.method is None else (self.method, *self.method.terms)

    def under(self, settings: RowSettings) -> BenchmarkRow:
        """The row with other settings, such as those of a case, under the same label."""
        return replace(_row(*self.typed, settings), label=self.label)


def chosen_rows(spec: BenchmarkSpec, texts: Sequence[str] | None) -> list[BenchmarkRow]:
    """The rows that `texts` name, without duplicates; by default the benchmark's own."""
    for settings, where in ((spec.settings, ""), *((case.settings, f": case {case.name}") for case in spec.cases)):
        try_settings(settings, f"{spec.name}{where}")
    make_recipe(dict(spec.recipe))
    named = [part for text in texts or spec.methods for part in split(text, ",", "`methods`")]
    rows = [row for part in named for row in (paper_rows(spec) if part == PAPER else [part])]
    return parse_rows(rows, spec.settings)


def paper_rows(spec: BenchmarkSpec) -> list[str]:
    """The methods of every row of the benchmark's tables, in order, for `methods`.

    Without methods that are not available or that adapt to the stream of test images.
    """
    if not spec.tables:
        raise InputError(f"`methods` {PAPER}: the paper has no table of {spec.name}. Name methods instead.")
    rows = [row for name in spec.tables for row in paper_table(name).rows]
    return list(dict.fromkeys(row.method for row in rows if row.method and not row.saw_stream))


def with_labels(table: Table, spec: BenchmarkSpec) -> Table:
    """The paper's table with its methods named as in the results."""

    def labelled(row: Row) -> Row:
        if not row.method or row.saw_stream:
            return row
        return replace(row, method=parse_rows([row.method], spec.settings)[0].label)

    return replace(table, rows=tuple(map(labelled, table.rows)))


def parse_rows(texts: Sequence[str], settings: RowSettings = NO_SETTINGS) -> list[BenchmarkRow]:
    """Rows from the command line or a benchmark's list, without duplicates, in order."""
    parts = [part for text in texts for part in split(text, ",", "`methods`")]
    found = {row.label: row for part in parts for row in _expand(part, settings)}
    if not found:
        raise InputError("`methods` is empty. Write for example msp,delta-energy,ebm/delta-energy.")
    return list(found.values())


def _expand(text: str, settings: RowSettings) -> Iterator[BenchmarkRow]:
    sides = cut(text, "/", "method")
    if len(sides) == 1:
        yield from (_single(one, settings) for one in _alternatives(text))
        return
    if len(sides) != 2 or not all(map(_alternatives, sides)):
        raise InputError(f"method {text!r} is not of the form score, tuner/score or {{tuner,…}}/{{score,…}}.")
    for tuner, score in itertools.product(*map(_alternatives, sides)):
        yield _row(tuner, score, settings)


def _single(text: str, settings: RowSettings) -> BenchmarkRow:
    names = [part.name for part in parse(text, "method", list_methods())]
    # A plus is part of some scores' names, and joins a term to a tuner. A tuner's own score has the tuner's name.
    name = "+".join(names)
    if name in list_scores() and get_score_class(name).own_to is None:
        return _row(ZERO_SHOT, text, settings)
    if names[0] in list_methods():
        return _row(text, make_method(text).usual_score, settings)
    hint = did_you_mean(names[0], [*list_scores(), *list_methods()])
    raise InputError(f"Unknown method {text!r}: neither a score nor a tuner.{hint}")


def _alternatives(text: str) -> list[str]:
    return split(text[1:-1], ",", "method") if text[:1] + text[-1:] == "{}" else [text] if text else []


def _row(tuner: str, score: str, settings: RowSettings) -> BenchmarkRow:
    """A row of two texts; the table's settings are defaults."""
    (asked,) = parse(score, "score", list_scores())
    scored = make_score(_spelled(asked, settings.scores, get_score_class)).spec
    if tuner == ZERO_SHOT:
        templates = settings.scores.get(asked.name, PartSettings()).templates
        return BenchmarkRow(scored, None, scored, templates, typed=(tuner, score))
    parts = parse(tuner, "method", list_methods())
    first = METHODS.get(parts[0].name)
    if issubclass(first, Term):
        parts.insert(0, Named(first.usual_method, None, {}))
    method = make_method("+".join(_spelled(part, settings.tuning, METHODS.get) for part in parts))
    told = [settings.tuning.get(part.name, PartSettings()) for part in parts]
    terms = tuple(replace(term, grids=one.grids) for term, one in zip(method.terms, told[1:]))
    method = replace(method, grids=told[0].grids, terms=terms)
    recipe = {name: value for one in told for name, value in one.recipe.items()}
    return BenchmarkRow(f"{method.spec}/{scored}", method, scored, (), recipe, (tuner, score))


def _spelled(part: Named, settings: Mapping[str, PartSettings], class_of: Callable[[str], type[Settings]]) -> str:
    """A part of a text with the table's parameters added."""
    preset = class_of(part.name).presets.get(part.preset or "", {})
    table = settings.get(part.name, PartSettings()).parameters
    ours = {name: format_value(value) for name, value in table.items() if name not in preset}
    params = ",".join(f"{name}={value}" for name, value in {**ours, **part.params}.items())
    return part.name + (f":{part.preset}" if part.preset else "") + (f"({params})" if params else "")


def try_settings(settings: RowSettings, where: str) -> None:
    """Raise `InputError` for a name or value that no row could have."""
    for name in settings.scores:
        _known(name, list_scores(), f"{where}: scores", "score")
        make_score(_spelled(Named(name, None, {}), settings.scores, get_score_class))
    for name, part in settings.tuning.items():
        _known(name, METHODS.names(), f"{where}: tuning", "tuning method or loss term")
        made = make_method(_spelled(Named(name, None, {}), settings.tuning, METHODS.get))
        owner = next(one for one in (made, *made.terms) if one.name == name)
        for grid in part.grids or ():
            for parameter, values in grid.items():
                _known(parameter, owner.params, f"{where}: tuning.{name}.grid", "parameter")
                for value in values:
                    replace(owner, **{parameter: value})
        make_recipe(part.recipe)


def _known(name: str, known: Collection[str], where: str, what: str) -> None:
    if name not in known:
        raise InputError(f"{where}: unknown {what} {name!r}.{did_you_mean(name, known)}")
