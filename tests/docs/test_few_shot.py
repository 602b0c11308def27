"""The table of few-shot methods: what it draws, what it tests on, and its intervals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import deltaenergy as de

TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables"


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    pytest.importorskip("scipy", reason="the tables use scipy's t-distribution")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(TABLES))
    import few_shot

    yield few_shot
    patch.undo()


def test_a_cell_is_tested_on_what_was_not_drawn(tables: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 6)
    features = rng.normal(size=(4, 10))[labels] + rng.normal(size=(24, 10))
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    names = ["a", "b", "c", "d"]
    model = de.PrecomputedModel(10)
    problem = tables.Problem("set (x)", model, names, features, labels, (1, 3), ("centroids",))
    found = tables.run([problem], [1, 2], "mcm", None)
    assert list(found) == [f"set (x)|{shots}|centroids|{seed}" for seed in (1, 2) for shots in (1, 3)]
    train = de.LabelledFeatures(features, labels)
    sample = tables.prepare_training(model, names, train, 3, 2).sample
    drawn = [int(item.id.split()[1]) for item in sample.items]
    means = np.stack([features[[row for row in drawn if labels[row] == k]].mean(axis=0) for k in range(4)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    rest = [row for row in range(24) if row not in drawn]
    expected = 100 * (np.argmax(features[rest] @ means.T, axis=1) == labels[rest]).mean()
    cell = found["set (x)|3|centroids|2"]
    assert cell["acc"] == pytest.approx(expected) and 0 <= cell["auroc"] <= 100
    assert found["set (x)|1|centroids|1"]["auroc"] is None
    tables.print_tables([problem], found, [1, 2], None)
    shown = capsys.readouterr().out
    assert "**Accuracy, x**" in shown and "| method | set, 1 | set, 3 |" in shown and shown.count("| centroids |") == 2


def test_intervals_are_student_s(tables: ModuleType) -> None:
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.3027: half of the width is 4.3027/√3 = 2.484.
    assert tables.cell([1.0, 2.0, 3.0]) == "2.0 ± 2.5"
    assert tables.cell([5.0]) == "5.0" and tables.cell([]) == "–"
