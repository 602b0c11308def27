"""A service that watches: every verdict is looked at, gauges tell, and the state is there when it has stopped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from starlette.testclient import TestClient

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.monitor import Monitor
from deltaenergy.serve import engine as serve_engine
from deltaenergy.serve.app import create_app
from deltaenergy.serve.server import make_engine, watched
from tests.serve.conftest import PICTURES
from tests.serve.test_service import Service


def gauge(client: Any, name: str, **labels: str) -> float:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    found = re.search(rf"^deltaenergy_monitor_{name}\{{{re.escape(inside)}\}} (.+)$", client.get("/metrics").text, re.M)
    assert found, name
    return float(found[1])


def test_every_verdict_is_looked_at(
    detectors: dict[str, de.Detector], lite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_engine, "SAVE_SECONDS", 0.0)
    path = tmp_path / "state.json"
    with Monitor.open(path, detectors["colours"]) as monitor:
        engine = make_engine(list(detectors.items()), lite, watches={"colours": (monitor, path)})
        with TestClient(create_app(engine)) as client:
            assert gauge(client, "images", detector="colours") == 0
            files = [("files", ("../../etc/x.png", data)) for data in PICTURES] + [("files", ("broken", b"?"))]
            answers = client.post("/v1/verdicts", data={"detector": "colours"}, files=files).json()["images"]
            client.post("/v1/verdicts", data={"detector": "letters"}, files=files[:3])
            client.post("/v1/classify", data={"classes": "a,b"}, files=files[:3])
            feature = lite.encode_images([PICTURES[0]])[0].tolist()
            one = client.post("/v1/features", json={"detector": "colours", "features": [feature]}).json()["images"]
            flagged = sum(answer["is_ood"] for answer in [*answers[:12], *one])
            assert flagged > 0
            assert gauge(client, "images", detector="colours") == 13
            assert gauge(client, "rate", detector="colours") == pytest.approx(flagged / 13)
            assert gauge(client, "rate_bound", detector="colours") == pytest.approx(monitor.bound)
            status = monitor.status
            for test in ("rate", "shift"):
                found = gauge(client, "evidence", detector="colours", test=test)
                assert found == pytest.approx(status.evidence[test])
            assert gauge(client, "changed", detector="colours") == status.changed
            assert gauge(client, "evidence_bar", detector="colours") == pytest.approx(status.alarm_level)
    saved = de.Monitor.load(path, detectors["colours"])
    assert saved.images == 13 and saved.flagged == flagged
    assert not any(seen.file for seen in saved.history.flagged)


def test_the_answers_are_those_of_a_monitor_fed_by_hand(detectors: dict[str, de.Detector], lite: Any) -> None:
    expected = de.Monitor(detectors["colours"])
    for data in PICTURES:
        expected.watch([data])
    monitor = de.Monitor(detectors["colours"])
    engine = make_engine(list(detectors.items()), lite, watches={"colours": (monitor, Path("unused"))})
    with TestClient(create_app(engine)) as client:
        engine.watches["colours"].save = lambda: None  # type: ignore[method-assign]
        for data in PICTURES:
            client.post("/v1/verdicts", files=[("files", ("x.png", data))], data={"detector": "colours"})
    assert monitor.status.evidence == pytest.approx(expected.status.evidence, abs=1e-6)
    assert monitor.flagged == expected.flagged


def test_which_detector_a_state_is_for() -> None:
    assert watched("state.json", ["pets"]) == ("pets", Path("state.json"))
    assert watched("a/b=c.json", ["pets"]) == ("pets", Path("a/b=c.json"))
    assert watched("pets=state.json", ["pets", "cars"]) == ("pets", Path("state.json"))
    with pytest.raises(InputError, match="say which"):
        watched("state.json", ["pets", "cars"])
    with pytest.raises(InputError, match="Did you mean 'pets'"):
        watched("pet=state.json", ["pets", "cars"])


def test_the_state_of_a_stopped_service(detectors: dict[str, de.Detector], tmp_path: Path) -> None:
    detectors["colours"].save(tmp_path / "colours")
    detectors["letters"].save(tmp_path / "letters")
    folders = {name: tmp_path / name for name in ("colours", "letters")}
    state = tmp_path / "states" / "state.json"
    service = Service(folders, "--monitor", f"colours={state}")
    try:
        code, _ = service.verdicts(PICTURES[:5])
        assert code == 200
        with pytest.raises(InputError, match="Another run"), Monitor.open(state, detectors["colours"]):
            pass
    finally:
        assert service.stop() == 0
    assert de.Monitor.load(state, de.Detector.load(tmp_path / "colours")).images == 5
