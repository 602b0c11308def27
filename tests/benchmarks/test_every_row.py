"""Every row of the paper's tables runs on a small vision transformer under the protocol `paper`, with its own settings.

Settings are those of the table; only what costs time is made less: one epoch, two values of each searched parameter,
few words and few crops.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deltaenergy import Model
from deltaenergy.benchmarks.protocol import get_protocol
from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.rows import chosen_rows
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.spec import BenchmarkSpec, PartSettings, RowSettings, load_spec
from deltaenergy.benchmarks.tables import paper_table, paper_tables
from deltaenergy.classifiers.methods import list_methods
from deltaenergy.scores.clipn.tower import NoTower
from tests.benchmarks.small import small_spec

# A row of each kind: searched, as released, of patches, of pixels, of prompted image towers, of mined words.
SAMPLE = {
    "setup1-scores": ["CSP", "MCM", "ODIN"],
    "setup2-tuning": ["DPLCLIP", "LoCoOp", "CRoFT", "EBM + ΔEnergy"],
    "clip-11": ["PromptSRC+EBM"],
}
WORDS = "\n".join(f"{kind} {number}" for kind in ("gravel", "cloud", "rust", "moss") for number in range(10))
# Settings that a small model and a few drawings can bear.
SMALL: dict[str, dict[str, Any]] = {"id-like": {"crops": 4, "selected": 1, "outliers": 5}}


def less(settings: RowSettings, scores: Mapping[str, Mapping[str, Any]]) -> RowSettings:
    """The settings of a table, for less time."""

    def tuning(name: str, part: PartSettings) -> PartSettings:
        grids = part.grids and tuple(
            {axis: [2, 3] if axis == "top_k" else values[:2] for axis, values in grid.items()} for grid in part.grids
        )
        given = {**part.parameters, **SMALL.get(name, {})}
        given = {key: 2 if (name, key) == ("locoop", "top_k") else value for key, value in given.items()}
        return replace(part, parameters=given, grids=grids, recipe={**part.recipe, "epochs": 1})

    names = dict.fromkeys([*settings.tuning, *list_methods()])
    return RowSettings(
        {name: tuning(name, settings.tuning.get(name, PartSettings())) for name in names},
        {
            name: replace(part, parameters={**part.parameters, **scores.get(name, {})})
            for name in {**settings.scores, **scores}
            for part in [settings.scores.get(name, PartSettings())]
        },
    )


def small_table(benchmark: str, model: Model, folder: Path) -> BenchmarkSpec:
    """Drawn images under the settings of a benchmark of the paper."""
    (folder / "words.txt").write_text(WORDS)
    tower = NoTower(model, torch.zeros(1, model.text.width)).requires_grad_(False)  # type: ignore[attr-defined]
    tower.save(folder / "no tower", model, {})
    mined = {"words": str(folder / "words.txt"), "keep": 1.0}
    scores = {
        **dict.fromkeys(("neglabel", "csp", "csp+delta-energy", "negrefine"), mined),
        "clipn": {"no_tower": str(folder / "no tower")},
    }
    paper = get_protocol("paper").applied_to(load_spec(benchmark))
    drawn = small_spec(("domains: [flat]}\n    closed", "domains: [flat, outline]}\n    closed"))
    case = replace(drawn.cases[0], settings=less(paper.cases[0].settings, scores))
    return replace(
        drawn, cases=(case,), tables=paper.tables, settings=less(paper.settings, scores), data={}, template="a {}."
    )


def check_rows(table: str, labels: list[str], model: Model, folder: Path) -> None:
    printed = paper_table(table)
    spec = small_table(printed.benchmark, model, folder)
    methods = [row.method for row in printed.rows if row.label in labels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few images and words
        summary = run_benchmark(
            spec, model, DataRoot(), folder / "out", methods=methods, seeds=[1], protocol="paper", batch_size=16
        )
    assert [skip.what for skip in summary.skips] == []
    cells = Results(folder / "out").cells()
    assert {cell.identity["method"] for cell in cells} == {row.label for row in chosen_rows(spec, methods)}
    for cell in cells:
        searched = cell.identity["tuner"] is not None and "grid" in cell.identity
        assert cell.identity["search"] == (searched if cell.identity["tuner"] else None)
        assert cell.rows


@pytest.mark.campaign
@pytest.mark.parametrize("table", paper_tables())
def test_every_row_of_the_table_runs(table: str, tiny_clip: Model, tmp_path: Path) -> None:
    check_rows(table, [row.label for row in paper_table(table).rows], tiny_clip, tmp_path)


@pytest.mark.parametrize("table", SAMPLE)
def test_a_sample_of_rows_runs(table: str, tiny_clip: Model, tmp_path: Path) -> None:
    check_rows(table, SAMPLE[table], tiny_clip, tmp_path)
