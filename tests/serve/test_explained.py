"""`/v1/explain`: the map of the detector's own classifier, within the limits of the service."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.serve.server import Limits
from tests.serve.conftest import CLASSES, PICTURES, make_client


def one_file(data: bytes = PICTURES[0]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", ("mine.png", data))]


@pytest.mark.parametrize("target", ["class", "score", "blue sky"])
def test_the_map_is_that_of_de_explain(client: Any, detectors: Any, target: str) -> None:
    answer = client.post("/v1/explain", data={"detector": "colours", "target": target}, files=one_file())
    assert answer.status_code == 200, answer.text
    body = answer.json()
    (expected,) = de.explain(detectors["colours"], [PICTURES[0]], target=target)
    np.testing.assert_allclose(body["heatmap"], expected.heatmap, rtol=1e-3, atol=1e-6)
    assert (body["id"], body["label"], body["method"]) == ("mine.png", expected.label, expected.method)
    assert body["target"] == expected.target and body["value"] == pytest.approx(expected.value, rel=1e-4)
    assert expected.verdict is not None and body["verdict"] == expected.verdict.verdict
    assert body["alternative"].startswith("Heatmap of mine.png: what")
    kind, _, data = body["overlay"].partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as overlay:
        assert overlay.format == "PNG" and overlay.size == (224, 224)


def test_class_names_of_the_request(client: Any, lite: Any) -> None:
    asked = {"classes": ",".join(CLASSES[:2]), "score": "mcm", "target": "score", "method": "value-path"}
    body = client.post("/v1/explain", data=asked, files=one_file(PICTURES[1])).json()
    judge = de.Detector(de.ZeroShotClassifier(lite, CLASSES[:2]), "mcm")
    (expected,) = de.explain(judge, [PICTURES[1]], method="value-path", target="score")
    np.testing.assert_allclose(body["heatmap"], expected.heatmap, rtol=1e-3, atol=1e-6)
    assert body["id"] == "mine.png" and body["verdict"] is None


@pytest.mark.parametrize(
    ("fields", "files", "status", "message"),
    [
        ({"detector": "colours"}, [], 422, "files: Field required"),
        ({"detector": "colours"}, one_file() * 2, 422, "not 2"),
        ({"detector": "nowhere"}, one_file(), 404, "There is no detector"),
        ({"detector": "colours", "target": "blue ski"}, one_file(), 422, "Did you mean 'blue sky'"),
        ({"detector": "colours", "method": "gradcam"}, one_file(), 422, "Did you mean 'grad-cam'"),
        ({"detector": "colours", "method": "rollout"}, one_file(), 422, "vision transformer"),
        ({"detector": "colours", "method": "x" * 200}, one_file(), 422, "wrong fields"),
        ({"detector": "colours"}, one_file(b"no picture"), 422, "cannot be read"),
    ],
)
def test_mistakes_are_told(client: Any, fields: dict[str, str], files: Any, status: int, message: str) -> None:
    answer = client.post("/v1/explain", data=fields, files=files or [("other", ("", b""))])
    assert answer.status_code == status and message in answer.json()["error"]


def test_the_queue_holds_for_explanations_too(detectors: Any, lite: Any) -> None:
    with make_client(detectors, lite, Limits(queue=1, files=1)) as client:
        engine = client.app.app.state.engine if hasattr(client.app, "app") else client.app.state.engine
        engine.under_way = 1
        answer = client.post("/v1/explain", data={"detector": "colours"}, files=one_file())
        assert answer.status_code == 429 and "Retry-After" in answer.headers
        engine.under_way = 0
        assert client.post("/v1/explain", data={"detector": "colours"}, files=one_file()).status_code == 200
        assert engine.under_way == 0
