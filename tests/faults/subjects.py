"""What is damaged: small detectors of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import deltaenergy as de
from deltaenergy import Detector, Model
from deltaenergy.core.needs import Need
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from tests.labelled_pictures import CLASSES


def unit_features(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    features = np.random.default_rng(seed).normal(size=(count, dimension))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


def train_set_for(model: Model, pictures: Path) -> TrainSet:
    return prepare_training(model, CLASSES, pictures, shots=4, views=2, needs=frozenset({Need.FEATURES}))


def make_detectors(model: Model, train_set: TrainSet, folder: Path) -> dict[str, Detector]:
    """By name: without and with learned scores, zero-shot and tuned."""
    words = folder / "words.txt"
    words.write_text("\n".join(f"word {letter}" for letter in "abcdefghijklmnopqrst"), encoding="utf-8")
    zero_shot = de.ZeroShotClassifier(model, ["dog", "cat", "red car"], templates=["a {}", "the {}"])
    tuned = {name: de.tune(model, CLASSES, train_set, name, recipe={"epochs": 2}) for name in ("coop", "tip-adapter-f")}
    images = unit_features(20, model.feature_dim)
    made = {
        "delta-energy": Detector(zero_shot, "delta-energy(tau=0.1,c=1)"),
        "delta-energy:robust": Detector(zero_shot, "delta-energy:robust"),
        "react": Detector(zero_shot, "react"),
        "multi-delta-energy": Detector(zero_shot, "multi-delta-energy"),
        "neglabel": Detector(zero_shot, de.make_score("neglabel", words=str(words), keep=0.5, groups=2)),
        "coop": Detector(tuned["coop"], "mcm"),
        "tip-adapter-f": Detector(tuned["tip-adapter-f"], "energy"),
    }
    return {name: detector.calibrate(images, keep=0.8) for name, detector in made.items()}
