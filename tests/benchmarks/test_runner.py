"""The runner: the same numbers as by hand, nothing twice, what is missing named, and a kill at any moment harmless."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import deltaenergy as de
from deltaenergy.benchmarks import runner
from deltaenergy.benchmarks.drawn import OBJECTS, drawn_images
from deltaenergy.benchmarks.results import IDENTITY, MEASURED, OPTIONAL, Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot, order
from deltaenergy.benchmarks.spec import class_list
from deltaenergy.errors import ArtifactError, InputError, OutputError
from tests.benchmarks.small import small_spec
from tests.faults import harness

if TYPE_CHECKING:
    from deltaenergy import Model

CLOSED = class_list("drawn/closed")


def values(results: Results, **wanted: object) -> dict[str, float]:
    """Metrics of the one cell and pair of sets that `wanted` names."""
    rows = [{**cell.identity, **row} for cell in results.cells() for row in cell.rows]
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    metrics = {row["metric"]: row["value"] for row in found}
    assert len(metrics) == len(found), "several cells match"
    return metrics


def first_per_class(style: str, count: int, labels: list[str]) -> list[de.data.items.ImageItem]:
    """What `per_class` chooses: the images of each class whose id has the lowest hash."""
    items = [item for item in drawn_images("test") if item.domain == style]
    return [item for label in labels for item in sorted((i for i in items if i.label == label), key=order)[:count]]


def test_the_runner_gives_the_numbers_that_the_pieces_give_by_hand(tiny_clip: Model, tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp", "delta-energy(c=3)"])
    classifier = de.ZeroShotClassifier(tiny_clip, CLOSED, template="a {}.")
    closed, others = first_per_class("noisy", 2, CLOSED), [name for name in OBJECTS if name not in CLOSED]
    inside = classifier.similarities(closed)
    outside = classifier.similarities(first_per_class("flat", 2, others))
    correct = [CLOSED[column] == item.label for column, item in zip(inside.argmax(axis=1), closed)]
    results = Results(tmp_path)
    for method, score in (("msp", de.scores.msp), ("delta-energy(c=3)", lambda s: de.scores.delta_energy(s, c=3))):
        found = values(results, method=method, closed="noisy", open="open")
        truth = np.repeat([1, 0], [len(inside), len(outside)])
        scores = np.concatenate([score(inside), score(outside)])
        assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
        false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
        assert found["fpr95"] == pytest.approx(false[np.argmax(true >= 0.95)], abs=1e-6)
        accuracy = values(results, method=method, closed="noisy", open=None)
        assert accuracy == {"accuracy": pytest.approx(np.mean(correct))}


def test_croft_counts_only_correct_images_and_shows_open_ones_in_the_train_view(
    tiny_clip: Model, tmp_path: Path
) -> None:
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"])
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"], protocol="croft")
    results = Results(tmp_path)
    accuracy = values(results, protocol="croft", closed="flat", open=None)["accuracy"]
    assert accuracy == values(results, protocol="standard", closed="flat", open=None)["accuracy"]
    counted = {
        row["n_closed"]
        for cell in results.cells()
        for row in cell.rows
        if cell.identity["protocol"] == "croft" and row["open"] == "open" and row["closed"] == "flat"
    }
    assert counted == {round(accuracy * 3 * len(CLOSED))}
    curves = {cell.identity["protocol"]: cell.curves[0]["open_scores"] for cell in results.cells()}
    assert curves["croft"] != curves["standard"]


def test_nothing_is_computed_or_encoded_twice(
    tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"])
    assert (first.computed, first.found) == (1, 0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the image tower ran again")

    monkeypatch.setattr(tiny_clip, "image_features", refuse)
    again = run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp", "mcm"])
    assert (again.computed, again.found) == (1, 1)
    cells = [path for path in before if path.parent.name == "cells"]
    assert all(path.read_bytes() == before[path] for path in cells)


def test_all_scores_of_a_tuner_share_a_pass_and_cheap_ones_come_first(
    tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patches need the images, so they take a pass of their own; many prompts (here: any) wait until the end."""
    seen: list[list[str]] = []
    original = runner.evaluate_sets

    def spy(classifier: Any, scorers: Any, *arguments: Any, **options: Any) -> Any:
        seen.append([scorer.spec for scorer in scorers])
        return original(classifier, scorers, *arguments, **options)

    monkeypatch.setattr(runner, "evaluate_sets", spy)
    monkeypatch.setattr(runner, "MOST_PROMPTS", 0)
    methods = ["neglabel:quick", "gl-mcm", "msp", "mcm", "coop/{msp,energy}"]
    said: list[str] = []
    run_benchmark(
        small_spec(),
        tiny_clip,
        DataRoot(),
        tmp_path,
        methods=methods,
        seeds=[1],
        announce=lambda text: said.append(text),
    )
    assert seen == [["msp", "mcm"], ["gl-mcm"], ["neglabel:quick"], ["msp", "energy"]]
    assert any("prompts of neglabel:quick" in text for text in said)
    assert [text for text in said if text.endswith(": msp, mcm")]


def test_a_damaged_cell_is_named(tiny_clip: Model, tmp_path: Path) -> None:
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"])
    (path,) = (tmp_path / "cells").iterdir()
    for text in ("[]", '{"format": 1}', path.read_text().replace('"rows"', '"lines"')):
        path.write_text(text)
        with pytest.raises(ArtifactError, match=f"{path.name}.*remove it"):
            run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"])


def test_results_identify_the_run(tiny_clip: Model, tmp_path: Path) -> None:
    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp", "react"], limit=9)
    table = pq.read_table(tmp_path / "results.parquet")
    assert table.column_names == [*IDENTITY, *OPTIONAL, *MEASURED]
    rows = table.to_pylist()
    assert {row["model_fingerprint"] for row in rows} == {tiny_clip.fingerprint}
    assert {row["limit"] for row in rows} == {9}
    assert all(row["n_closed"] <= 9 and row["n_open"] <= 9 for row in rows)
    # msp draws nothing; react is fitted on each seed's training images.
    assert {(row["score"], row["seed"], row["fitted_on"]) for row in rows} == {
        ("msp", None, None),
        ("react", 1, "training images"),
        ("react", 2, "training images"),
    }
    record = json.loads((tmp_path / "results.json").read_text())
    assert sum(len(cell["rows"]) for cell in record["cells"]) == len(rows)
    assert record["runs"][0]["model"] == json.loads(json.dumps(tiny_clip.describe()))


def test_without_training_images_scores_are_fitted_on_held_out_images(tiny_clip: Model, tmp_path: Path) -> None:
    spec = small_spec(("    train: {split: train, domains: [flat]}\n", ""))
    summary = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=["react", "msp", "coop/mcm"])
    rows = [{**cell.identity, **row} for cell in Results(tmp_path).cells() for row in cell.rows]
    tested = {row["score"]: row["n_closed"] for row in rows if row["closed"] == "flat" and row["metric"] == "accuracy"}
    assert tested == {"msp": 24, "react": 22}  # a tenth of 24 is held out
    assert {row["fitted_on"] for row in rows if row["score"] == "react"} == {"held-out test images"}
    assert any("coop/mcm" in skip.what and "training images" in skip.reason for skip in summary.skips)


def test_missing_data_sets_are_skipped_and_named(tiny_clip: Model, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    spec = small_spec(
        ("      open: {split: test", "      dtd: {dataset: dtd}\n      open: {split: test"),
    )
    summary = run_benchmark(spec, tiny_clip, DataRoot(root), tmp_path / "out", methods=["msp"])
    assert [(skip.case, skip.what) for skip in summary.skips] == [("drawn", "open set dtd (dtd)")]
    assert "DTD is not there" in summary.skips[0].reason
    assert summary.computed == 1
    record = json.loads((tmp_path / "out" / "results.json").read_text())["runs"][0]
    assert record["skipped"][0]["what"] == "open set dtd (dtd)"


def test_unreadable_images_are_left_out_and_named_again_when_nothing_is_left_to_do(
    tiny_clip: Model, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for label in ("banded", "dotted"):
        (root / "dtd" / "images" / label).mkdir(parents=True)
        for number in range(2):
            drawn_images("test")[number].source().save(root / "dtd" / "images" / label / f"{label}_{number}.png")
    broken = root / "dtd" / "images" / "banded" / "banded_0.png"
    broken.write_bytes(broken.read_bytes()[:50])
    spec = small_spec(("      open: {split: test, domains: [flat], per_class: 2}", "      dtd: {dataset: dtd}"))
    for methods in (["msp"], ["msp", "gl-mcm"], ["msp", "gl-mcm"]):
        summary = run_benchmark(spec, tiny_clip, DataRoot(root), tmp_path / "out", methods=methods)
        assert list(summary.unreadable) == ["dtd/images/banded/banded_0.png"]
    assert summary.computed == 0
    rows = [row for cell in Results(tmp_path / "out").cells() for row in cell.rows if row["open"] == "dtd"]
    assert {row["n_open"] for row in rows} == {3}


def test_a_score_that_needs_patches_is_computed_from_the_images(tiny_clip: Model, tmp_path: Path) -> None:
    """Worked out again in NumPy: max_k softmax(s)_k + max over patches and classes of softmax_k(u_p·t_k), at T = 1."""
    from sklearn.metrics import roc_auc_score

    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["gl-mcm"])
    found = values(Results(tmp_path), closed="flat", open="open")
    texts = tiny_clip.encode_texts([f"a {name}." for name in CLOSED]).astype(np.float64)

    def scores(items: list[de.data.items.ImageItem]) -> np.ndarray:
        encoded = tiny_clip.encode(items, patches=True)

        def surest(features: np.ndarray) -> np.ndarray:
            powers = np.exp(features.astype(np.float64) @ texts.T)
            return (powers / powers.sum(axis=-1, keepdims=True)).max(axis=-1)

        return surest(encoded.features) + surest(encoded.patches).max(axis=1)

    closed = scores(first_per_class("flat", 3, CLOSED))
    opened = scores(first_per_class("flat", 2, [name for name in OBJECTS if name not in CLOSED]))
    truth = np.repeat([1, 0], [len(closed), len(opened)])
    expected = roc_auc_score(truth, np.concatenate([closed, opened]))
    assert found["auroc"] == pytest.approx(expected, abs=1e-6)


def test_a_prompt_learner_is_told_other_class_names_for_concept_shift(tiny_clip: Model, tmp_path: Path) -> None:
    # The open objects stand in for superclasses: another class list for the same learned context.
    spec = small_spec(
        (
            "noisy: {split: test, domains: [noisy]",
            "noisy: {split: test, own_classes: true, classes: all, domains: [noisy]",
        )
    )
    run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=["msp", "coop/msp"], seeds=[1])
    results = Results(tmp_path)
    items, names = first_per_class("noisy", 2, list(OBJECTS)), list(OBJECTS)
    predicted = de.ZeroShotClassifier(tiny_clip, names, "a {}.").similarities(items).argmax(axis=1)
    by_hand = np.mean([names[column] == item.label for column, item in zip(predicted, items)])
    assert values(results, method="msp", closed="noisy") == {"accuracy": pytest.approx(by_hand)}
    tuned = values(results, method="coop/msp", closed="noisy")
    assert set(tuned) == {"accuracy"}  # no open set for another class list


def test_who_chooses_on_which_images(tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are searched, or not, and by what split the validation images are of (4 of each of 8 classes)."""
    import deltaenergy.tuning.tune as tuning

    seen: list[tuple[bool, dict[str, int]]] = []
    original = tuning.tune

    def spy(*arguments: Any, **options: Any) -> Any:
        splits = Counter(item.id.split("/")[1] for item in options["val"] or ())
        seen.append((options["search"], dict(splits)))
        options["search"] = False
        return original(*arguments, **options)

    monkeypatch.setattr(tuning, "tune", spy)
    spec = small_spec(("shots: 2", "shots: 4\ntuning: {clip-adapter: {grid: {alpha: [0.2, 0.5]}}}"))
    given: list[dict[str, Any]] = [{}, {"protocol": "croft"}, {"protocol": "paper"}, {"search": True}]
    for number, options in enumerate(given):
        methods = ["coop/msp", "clip-adapter/msp"]
        run_benchmark(spec, tiny_clip, DataRoot(), tmp_path / str(number), methods=methods, seeds=[1], **options)
    # Four images in each case, of which the test set has three.
    standard, croft, paper, asked = (seen[i : i + 2] for i in range(0, 8, 2))
    assert standard == [(False, {}), (False, {})]
    assert croft == [(False, {"test": 24}), (True, {"test": 24})]
    assert paper == [(False, {"train": 32}), (True, {"train": 32})]
    assert asked == [(False, {"train": 32}), (True, {"train": 32})]


def test_an_unknown_seed_of_a_drawn_class_list_is_an_error(tiny_clip: Model, tmp_path: Path) -> None:
    from deltaenergy.benchmarks.spec import load_spec

    with pytest.raises(InputError, match="no list 'setup1/7'"):
        run_benchmark(load_spec("setup1"), tiny_clip, DataRoot(), tmp_path, methods=["msp"], seeds=[7])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs fork and /proc")
@pytest.mark.parametrize("protocol", ["standard", "paper"])
def test_killed_and_gone_on_with_the_results_are_byte_identical(
    protocol: str, tiny_clip: Model, tmp_path: Path
) -> None:
    """Each time after so many operations on its files, until half of the work is done."""
    spec = small_spec(
        ("recipe: {epochs: 2}", "recipe: {epochs: 2}\ntuning: {clip-adapter: {grid: {alpha: [0.2, 0.5]}}}"),
        ("seeds: [1, 2]", "seeds: [1]"),
    )
    methods = {"standard": ["msp", "react", "coop/mcm"], "paper": ["mcm", "clip-adapter/mcm"]}[protocol]

    def run(name: str) -> None:
        run_benchmark(spec, tiny_clip, DataRoot(), tmp_path / name, methods=methods, protocol=protocol)

    undisturbed = harness.fail(lambda: run("whole"), tmp_path / "whole")
    assert undisturbed.ended == "done", undisturbed.message
    moment = harness.Fault(len(undisturbed.operations) // 8, "killed before")
    for _ in range(4):
        harness.kill(lambda: run("killed"), tmp_path / "killed", moment)
    run("killed")

    def files(folder: Path) -> dict[str, bytes]:
        # A killed writer may leave a temporary file behind; the log, and what is kept of each epoch, hold times.
        timed = {"log.jsonl", "classifier.json"}
        paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part"]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.name not in timed}

    whole, killed = files(tmp_path / "whole"), files(tmp_path / "killed")
    assert {"results.json", "results.parquet"} <= set(whole)
    assert set(whole) == set(killed)
    assert not [name for name in whole if whole[name] != killed[name]]


def test_a_full_disk_is_no_reason_to_skip(tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltaenergy.training.checkpoints as checkpoints

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_bound", full)
        with pytest.raises(OutputError, match="No space left"):
            run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp", "coop/mcm"], seeds=[1])
    assert [cell.identity["method"] for cell in Results(tmp_path).cells()] == ["msp"], "what was done is kept"
    summary = run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp", "coop/mcm"], seeds=[1])
    assert (summary.computed, summary.found, summary.skips) == (1, 1, [])


def test_a_full_disk_under_the_features_is_no_reason_to_skip(
    tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store says it as an `ArtifactError` of its own."""

    def full(*_: object, **__: object) -> None:
        raise ArtifactError("cannot be written") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["msp"], seeds=[1])
    monkeypatch.setattr("deltaenergy.benchmarks.runner.Runner.fit", full)
    with pytest.raises(ArtifactError, match="cannot be written"):
        run_benchmark(small_spec(), tiny_clip, DataRoot(), tmp_path, methods=["react"], seeds=[1])


def test_a_search_with_a_given_value_is_another_result_than_one_without(tiny_clip: Model, tmp_path: Path) -> None:
    """The given value is the default, so that both are spelt alike."""
    spec = small_spec(("shots: 2", "shots: 4"), ("epochs: 2", "epochs: 1"))
    for method in ("clip-adapter/msp", "clip-adapter(alpha=0.2)/msp"):
        summary = run_benchmark(spec, tiny_clip, DataRoot(), tmp_path, methods=[method], seeds=[1], search=True)
        assert (summary.computed, summary.found) == (1, 0)
    told = {cell.identity.get("fixed") for cell in Results(tmp_path).cells()}
    assert told == {None, '["clip-adapter.alpha"]'}
    tuned = [
        path / "classifier.json" for path in (tmp_path / "tuned").iterdir() if (path / "classifier.json").is_file()
    ]
    searched = ["searched" in json.loads(path.read_text())["classifier"]["record"] for path in tuned]
    assert sorted(searched) == [False, True]
