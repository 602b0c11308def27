"""Methods that put learned tokens into the image tower, in a benchmark: their own features, or skipped and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.benchmarks.drawn import drawn_images
from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.rows import parse_rows
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot, order
from deltaenergy.benchmarks.spec import class_list, load_spec
from deltaenergy.benchmarks.tables import paper_table
from deltaenergy.classifiers.base import Classifier
from tests.benchmarks.small import small_spec

CLOSED = class_list("drawn/closed")
PROMPTED = ["maple/mcm", "plot++/mcm", "promptsrc/mcm", "promptsrc+ebm/mcm"]


def test_a_method_that_cannot_run_on_the_model_is_skipped_and_named(tmp_path: Path) -> None:
    methods = ["msp", *PROMPTED, "promptsrc(vision_tokens=0)/mcm"]
    lite = de.load_model("lite")
    summary = run_benchmark(small_spec(), lite, DataRoot(), tmp_path, methods=methods, seeds=[1], batch_size=4)
    told = {skip.what: skip.reason for skip in summary.skips}
    assert list(told) == ["tuner maple", "tuner plot++", "tuner promptsrc", "tuner promptsrc+ebm"]
    assert told["tuner plot++"] == (
        "plot++ puts learned tokens into the image encoder, which must be a vision transformer; 'lite' has a "
        "convolutional one."
    )
    assert summary.computed == 2  # msp, and promptsrc in the text tower alone
    record = json.loads((tmp_path / "results.json").read_text())["runs"][0]
    assert {skip["what"] for skip in record["skipped"]} == set(told)
    # Nothing was encoded for what cannot run.
    assert not any("pixels" in path.name for path in (tmp_path / "tuned").iterdir())


@pytest.mark.parametrize("method", ["maple/mcm", "plot++/mcm"])
@pytest.mark.parametrize("protocol", ["standard", "croft"])
def test_what_is_measured_is_the_prompted_tower(tiny_clip: Any, tmp_path: Path, method: str, protocol: str) -> None:
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=[method], seeds=[1], protocol=protocol)
    (kept,) = (path for path in (tmp_path / "tuned").iterdir() if (path / "classifier.json").is_file())
    classifier = Classifier.load(kept, tiny_clip)
    items = [item for item in drawn_images("test") if item.domain == "flat" and item.label in CLOSED]
    tested = [item for label in CLOSED for item in sorted((i for i in items if i.label == label), key=order)[:3]]
    predicted = classifier.similarities(tested).argmax(axis=1)
    expected = np.mean([CLOSED[column] == item.label for column, item in zip(predicted, tested)])
    rows = [row for cell in Results(tmp_path).cells() for row in cell.rows]
    found = [row["value"] for row in rows if row["closed"] == "flat" and row["metric"] == "accuracy"]
    assert found == [pytest.approx(expected)]
    again = run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=[method], seeds=[1], protocol=protocol)
    assert (again.computed, again.found) == (0, 1)


def test_clip_11_names_every_row_of_the_papers_table() -> None:
    rows = [row.method for row in paper_table("clip-11").rows]
    assert [method.label for method in parse_rows(load_spec("clip-11").methods)] == rows
    assert {"maple/msp", "promptsrc/msp", "promptsrc+ebm/msp", "plot++/msp"} <= set(rows)
