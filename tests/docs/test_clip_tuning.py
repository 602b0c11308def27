"""The tables of few-shot tuning on real CLIP features: what is trained on, tested on, computed. They may be absent."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from deltaenergy.benchmarks.spec import splits

TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    pytest.importorskip("scipy", reason="the tables use scipy's t-distribution")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(TABLES))
    import clip_tuning

    yield clip_tuning
    patch.undo()


@pytest.fixture(scope="module")
def data(tables: ModuleType, shared_data: Path) -> Any:
    return tables.ClipFeatures(shared_data / "clip_vit_b16")


def test_zero_shot_rows_as_computed_elsewhere(tables: ModuleType, data: Any) -> None:
    """NumPy and scikit-learn on the same features, domain by domain."""
    from sklearn.metrics import roc_auc_score

    names, truth, features = data.pacs_labels()
    texts, domains = data.other("pacs_text").astype(np.float64), np.array(data.pacs_domains())
    runs = tables.run_pacs(data, ["zero-shot"], [1])["zero-shot"]
    assert len(names) == 7 and len(runs) == 4

    def mcm(rows: Any) -> Any:
        e = np.exp(rows @ texts.T)
        return (e / e.sum(axis=1, keepdims=True)).max(axis=1)

    for domain, run in zip(sorted(set(domains)), runs):
        known = features[domains == domain].astype(np.float64)
        right = (known @ texts.T).argmax(axis=1) == truth[domains == domain]
        assert run["held-out acc"] == pytest.approx(100 * right.mean(), abs=1e-9)
        areas = []
        for unknown in data.pacs_open_sets().values():
            is_known = np.repeat([1, 0], [len(known), len(unknown)])
            areas.append(roc_auc_score(is_known, np.concatenate([mcm(known), mcm(unknown.astype(np.float64))])))
        assert run["mcm AUROC"] == pytest.approx(100 * np.mean(areas), abs=0.01)


def test_nothing_is_tested_on_that_was_trained_on(
    tables: ModuleType, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each held-out domain none is drawn, of each other class sixteen; the rest of them is tested on."""
    _, truth, features = data.pacs_labels()
    place = {row.tobytes(): i for i, row in enumerate(features)}
    seen: list[tuple[set[int], set[int]]] = []

    def look(model: Any, classes: Any, train: Any, method: str, seed: int) -> Any:
        drawn = [place[row.numpy().tobytes()] for row in train.images.features[:, 0]]
        assert np.bincount(truth[drawn]).tolist() == [16] * 7
        assert truth[drawn].tolist() == train.sample.labels
        seen.append((set(drawn), set()))
        return "classifier"

    def note(classifier: Any, tested: Any, labels: Any) -> float:
        rows = [place[row.tobytes()] for row in tested]
        assert truth[rows].tolist() == labels.tolist()
        seen[-1][1].update(rows)
        return 0.0

    monkeypatch.setattr(tables, "tune", look)
    monkeypatch.setattr(tables, "accuracy", note)
    monkeypatch.setattr(tables, "detection", lambda *arguments: {})
    tables.run_pacs(data, ["task-res"], [1, 2])
    assert len(seen) == 8
    for drawn, tested in seen:
        assert not drawn & tested and len(drawn) == 112 and len(tested) == 1008 - 112


def test_imagenet_is_split_as_published_and_leaves_pictures_to_test_on(tables: ModuleType, data: Any) -> None:
    for seed in (1, 2, 3):
        columns = tables.setup1_columns(seed)
        published = sorted(data.position[wnid] for wnid in splits()["setup1"][str(seed)])
        assert columns.tolist() == published
        rows = tables.training_rows(data, columns, seed)
        of_class = np.bincount(data.index[rows], minlength=1000)
        assert set(of_class[columns]) == {1, 2} and of_class.sum() == len(set(rows.tolist()))
        left = np.setdiff1d(np.flatnonzero((data.index >= 0) & ~data.one_per_class), rows)
        twice = np.flatnonzero(of_class == 2)
        assert set(twice) <= set(data.index[left])


def test_tuning_without_towers_teaches_what_the_tables_say(tables: ModuleType, data: Any) -> None:
    """One seed: task-res is the more accurate on the domains it saw, and a strong EBM term at τ' 0.05 detects worse."""
    harmful = "task-res+ebm(weight=10,loss_tau=0.05)"
    runs = tables.run_pacs(data, ["zero-shot", "task-res", harmful], [1])

    def mean(method: str, column: str) -> float:
        return float(np.mean([run[column] for run in runs[method]]))

    assert mean("task-res", "ID acc") > mean("zero-shot", "ID acc") + 0.3
    assert mean(harmful, "delta-energy AUROC") < mean("task-res", "delta-energy AUROC") - 1


def test_intervals_by_hand(tables: ModuleType) -> None:
    """t(0.975, 2) = 4.30265, the deviation of 1, 2, 3 is 1: the half-width is 4.30265/√3."""
    assert tables.interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_differences_are_paired_and_marked(tables: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Two groups of three runs. b leads in every run alike; c leads in one group alone, by much."""
    base = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    leads = {"b": [1.0, 1.1, 0.9] * 2, "c": [2.0, 2.0, 2.0, 0.1, 0.1, 0.1], "d": [1.0, -1.0] * 3}
    runs = {"task-res": base, **{name: [x + y for x, y in zip(base, lead)] for name, lead in leads.items()}}
    found = {name: [{"acc": value} for value in values] for name, values in runs.items()}
    tables.print_differences("some", found, 3, None)
    lines = {line.split(" | ")[0].strip("| "): line for line in capsys.readouterr().out.splitlines() if "±" in line}
    assert "**+1.00 ± 0.09**†" in lines["b"]
    assert "**+1.05 ± 1.0" not in lines["c"] and "+1.05 ± 1.09" in lines["c"]
    assert "+0.00 ± 1.15" in lines["d"] and "**" not in lines["d"]


def test_the_command_prints_both_tables(
    tables: ModuleType, data: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["clip_tuning.py", str(data.folder), "--seeds", "1", "--methods", "zero-shot", "tip-adapter"]
    monkeypatch.setattr("sys.argv", command)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some classes have one picture, not two
        tables.main()
    printed = capsys.readouterr().out
    assert "PACS, a domain held out, 4 runs" in printed and "ImageNet, 400 classes against 600, 1 run" in printed
    assert printed.count("| tip-adapter |") == 2
