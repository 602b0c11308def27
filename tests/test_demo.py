"""The demonstration: real photographs from installed packages, with the bundled model. Never skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from deltaenergy import demo
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import InputError
from tests.cli.runner import Runner


def test_the_demo_names_the_photographs_and_rejects_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Runner(capsys)("demo", "--out", tmp_path / "demo", "--json")
    assert result.code == 0, result.err
    rows = {row["path"]: row for row in result.json["images"]}
    truth = {Path(file).name: label for _, file, label in demo.PHOTOGRAPHS}
    named = [name for name, label in truth.items() if label is not None]
    right = sum(rows[name]["label"] == truth[name] for name in named)
    rejected = sum(row["is_ood"] for name, row in rows.items() if truth[name] is None)
    assert right >= 5, "the bundled model names at least five of the six photographs"
    assert rejected >= 8, "and rejects at least eight of the ten pictures of other things"
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "chelsea.png" in report and "retina.jpg" in report
    loaded = Detector.load(tmp_path / "demo" / "detector")
    assert loaded.threshold == result.json["threshold"]


def test_without_the_photographs_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"deltaenergy\[demo\]"):
        demo.sample_photographs()
