"""The tiny model: the same weights every time, loaded from its file, and better than chance on what it never saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deltaenergy import ZeroShotClassifier
from deltaenergy.benchmarks import tiny
from deltaenergy.benchmarks.drawn import OBJECTS, drawn_images
from deltaenergy.benchmarks.results import Results
from deltaenergy.benchmarks.runner import run_benchmark
from deltaenergy.benchmarks.sets import DataRoot
from deltaenergy.benchmarks.spec import load_spec
from deltaenergy.benchmarks.tables import own_table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tiny.TinyModel:
    steps: list[int] = []
    model = tiny.load_tiny(tmp_path_factory.mktemp("tiny") / "tiny.safetensors", lambda done, _: steps.append(done))
    assert steps == list(range(1, len(steps) + 1))
    return model


def test_it_knows_the_objects_in_styles_seen_and_unseen(trained: tiny.TinyModel) -> None:
    classifier = ZeroShotClassifier(trained, list(OBJECTS), "a drawing of a {}.")
    accuracy = {}
    for style in ("flat", "textured"):
        items = [item for item in drawn_images("test") if item.domain == style and item.id.endswith("0")]
        labels = [list(OBJECTS).index(item.label or "") for item in items]
        accuracy[style] = np.mean(classifier.similarities(items).argmax(axis=1) == labels)
    # Sixteen objects: chance is 6 %.
    assert accuracy["flat"] > 0.7
    assert 0.25 < accuracy["textured"] < accuracy["flat"]


def test_mini_runs_end_to_end_with_tuning_and_its_numbers_mean_something(
    trained: tiny.TinyModel, tmp_path: Path
) -> None:
    summary = run_benchmark(load_spec("mini"), trained, DataRoot(), tmp_path, seeds=[1], limit=64)
    assert summary.skips == []
    table = own_table("mini", "Mini", Results(tmp_path).cells())
    names = [column.label for column in table.columns]
    found = {row.method: dict(zip(names, row.measured)) for row in table.rows}
    assert len(found) == len(load_spec("mini").methods)
    energy = {name: value.mean for name, value in found["energy"].items() if value is not None}
    # Covariate shift costs accuracy and detection, and both stay above chance (12.5 %, 50 %).
    assert 0.25 < energy["shifted, accuracy"] < energy["id, accuracy"]
    assert 0.55 < energy["shifted vs open, AUROC"] < energy["id vs open, AUROC"]


def test_patches_are_unit_features_in_the_same_space(trained: tiny.TinyModel) -> None:
    pixels = torch.rand(3, 3, 32, 32)
    features, patches = trained.image_and_patch_features(pixels)
    assert torch.allclose(features, trained.image_features(pixels), atol=1e-6)
    assert patches.shape == (3, 16, trained.feature_dim)
    assert torch.allclose(patches.norm(dim=-1), torch.ones(3, 16), atol=1e-5)


def test_training_is_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "_STEPS", 3)
    monkeypatch.setattr(tiny, "_PER_CLASS", 2)
    state = torch.get_rng_state()
    first = tiny.load_tiny(tmp_path / "a.safetensors")
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert tiny.load_tiny(tmp_path / "b.safetensors").fingerprint == first.fingerprint
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert tiny.load_tiny(tmp_path / "a.safetensors").fingerprint == first.fingerprint
