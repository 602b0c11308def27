"""Under the protocol `paper` each of the 94 rows of the paper's tables is run with the settings that the paper states.

`paper_settings.yaml` was typed from the paper's text; what a run would do comes from the package's own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaenergy.benchmarks.protocol import get_protocol
from deltaenergy.benchmarks.rows import BenchmarkRow, chosen_rows
from deltaenergy.benchmarks.sets import template_of
from deltaenergy.benchmarks.spec import OF_DATASET, BenchmarkSpec, Case, load_spec
from deltaenergy.benchmarks.tables import paper_table, paper_tables
from deltaenergy.classifiers.dplclip import DplClipClassifier
from deltaenergy.classifiers.methods import Method
from deltaenergy.scores.registry import make_score
from deltaenergy.tuning.tune import recipes_of

TYPED: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("paper_settings.yaml").read_text(encoding="utf-8")
)["tables"]
ROWS = [(table, row) for table, rows in TYPED.items() for row in rows]
# As many classes as a case of the paper's tables has at least.
CLASSES = {"pacs": 7, "vlcs": 5, "imagenet": 400}


def run_under_paper(table: str, label: str) -> tuple[BenchmarkSpec, BenchmarkRow]:
    """The benchmark of a table, and the one row that a run of it has for the table's."""
    printed = paper_table(table)
    (row,) = [row for row in printed.rows if row.label == label]
    spec = get_protocol("paper").applied_to(load_spec(printed.benchmark))
    (found,) = chosen_rows(spec, [row.method])
    assert found in chosen_rows(spec, None), "it is run without being named"
    return spec, found


def test_all_94_rows_are_typed_and_no_others() -> None:
    assert {name: list(rows) for name, rows in TYPED.items()} == {
        name: [row.label for row in paper_table(name).rows] for name in [*TYPED]
    }
    assert set(TYPED) == set(paper_tables())
    assert len(ROWS) == 94


@pytest.mark.parametrize(("table", "label"), ROWS, ids=lambda part: part)
def test_the_row_is_run_as_the_paper_states(table: str, label: str) -> None:
    spec, row = run_under_paper(table, label)
    typed = TYPED[table][label]
    assert spec.shots == (16 if table != "cost" else 4) and spec.seeds == ((1, 2, 3) if table != "cost" else (1,))
    for case in spec.cases:
        if spec.measures == "cost" and (row.method is None) != (case.train is None):
            continue
        wanted = {**typed, **typed.get("cases", {}).get(case.group, {})}
        if "parameters" in typed:
            wanted["parameters"] = {**typed["parameters"], **wanted["parameters"]}
        check(row.under(case.settings), wanted, spec, case)


def check(row: BenchmarkRow, wanted: dict[str, Any], spec: BenchmarkSpec, case: Case) -> None:
    where = f"{case.name}: {row.label}"
    score = make_score(row.score).params
    for name, value in wanted.get("score", {}).items():
        assert score[name] == value, (where, name)
    if "batch" in wanted:
        assert spec.batch_size == wanted["batch"], where
    if row.method is None:
        own = template_of(case.dataset) if spec.template == OF_DATASET else spec.template
        assert list(row.templates or (own,)) == wanted["templates"], where
        return
    stages = [[one.epochs, one.lr, one.batch_size, one.optimizer] for one in recipes_of(row.method, row.recipe)]
    assert stages == wanted["stages"], where
    searched = wanted.get("grid", {})
    tried = list(row.method.candidates(CLASSES.get(case.group, 100))) if row.grids else [row.method]
    axes = [name for names in searched for name in names.split()]
    for candidate in tried:
        term = candidate.terms[0].params if candidate.terms else {}
        for name, value in wanted.get("parameters", {}).items():
            if name not in axes:
                assert plain(candidate.params[name]) == value, (where, name)
        for name, value in wanted.get("term", {}).items():
            assert term[name] == value, (where, name)
    for names, values in searched.items():
        assert {tuple(value_of(one, name) for name in names.split()) for one in tried} == {
            tuple(value) if isinstance(value, list) else (value,) for value in values
        }, (where, names)
    expected = 1
    for values in searched.values():
        expected *= len(values)
    assert len(tried) == expected, where


def value_of(method: Method, name: str) -> Any:
    return method.params[name] if name in method.params else method.terms[0].params[name]


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_dplclips_network_has_the_papers_depth_and_width(tiny_clip: Any) -> None:
    """mlp_depth 3 and mlp_width 512: two hidden layers of 512 between the feature and 16 context vectors."""
    _, row = run_under_paper("setup1-tuning", "DPLCLIP")
    assert row.method is not None
    built = row.method.build_empty(tiny_clip, ["a", "b"])
    assert isinstance(built, DplClipClassifier)
    hidden = TYPED["setup1-tuning"]["DPLCLIP"]["layers"]
    shapes = [tuple(parameter.shape) for name, parameter in built.named_parameters() if name.startswith("w")]
    assert [shape[0] for shape in shapes[:-1]] == hidden and len(shapes) == 3


def test_clip_adapter_has_an_image_adapter_of_a_quarter_of_the_width(tiny_clip: Any) -> None:
    _, row = run_under_paper("setup2-tuning", "CLIP-Adapter")
    assert row.method is not None
    sizes = {name: tuple(p.shape) for name, p in row.method.build_empty(tiny_clip, ["a", "b"]).named_parameters()}
    dim = tiny_clip.feature_dim
    assert sizes == {"w1": (dim // 4, dim), "w2": (dim, dim // 4)}


@pytest.mark.parametrize("name", ["setup1", "setup2"])
def test_dplclip_is_also_served_without_looking_at_the_test_batch(name: str) -> None:
    protocol = get_protocol("paper")
    spec = protocol.applied_to(load_spec(name))
    rows = {row.label: row for row in chosen_rows(spec, None)}
    released, ours = rows["dplclip(serve=batch)/mcm"], rows["dplclip/mcm"]
    assert released.method is not None and released.method.batch_dependent
    assert ours.method is not None and not ours.method.batch_dependent
    told = protocol.departures(spec, list(rows.values()))
    assert len(told) == 1 and "dplclip(serve=batch)" in told[0]


def test_a_searched_value_is_never_one_that_was_fixed() -> None:
    """In Setup-II λ0 is 2 in every candidate, whatever the term's own grid holds."""
    _, row = run_under_paper("setup2-tuning", "EBM + MCM")
    assert row.method is not None
    tried = list(row.method.candidates(7))
    assert len(tried) == 3 and {one.terms[0].params["weight"] for one in tried} == {2.0}
