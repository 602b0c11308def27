"""A service with two detectors on the bundled model, and pictures as bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from starlette.testclient import TestClient

import deltaenergy as de
from deltaenergy.serve.app import create_app
from deltaenergy.serve.server import Limits, make_engine

CLASSES = ["red square", "green field", "blue sky", "grey wall"]


def png(seed: int, side: int = 40) -> bytes:
    """A drawn picture: noise around a colour."""
    rng = np.random.default_rng(seed)
    pixels = np.clip(rng.integers(0, 255, 3) + rng.normal(0, 30, (side, side, 3)), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


PICTURES = [png(seed) for seed in range(12)]


@pytest.fixture(scope="session")
def lite() -> Any:
    return de.load_model("lite")


@pytest.fixture(scope="session")
def detectors(lite: Any) -> dict[str, de.Detector]:
    first = de.ZeroShotClassifier(lite, CLASSES)
    second = de.ZeroShotClassifier(lite, ["a", "b"])
    known = [png(seed) for seed in range(100, 130)]
    return {
        "colours": de.Detector(first, "delta-energy").calibrate(known, 0.5),
        "letters": de.Detector(second, "energy").calibrate(known, 0.9),
    }


def make_client(detectors: dict[str, de.Detector], model: Any, limits: Limits | None = None, **options: Any) -> Any:
    engine = make_engine(list(detectors.items()), model, limits)
    return TestClient(create_app(engine, **options), raise_server_exceptions=False)


@pytest.fixture(scope="session")
def client(detectors: dict[str, de.Detector], lite: Any) -> Iterator[Any]:
    with make_client(detectors, lite) as made:
        yield made
