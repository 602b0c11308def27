"""The page of a monitor: what it says, which pictures it shows, and that no name can break it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.report import write_report
from tests.colours import paint
from tests.monitor.made import ids_of, labels_of, make_detector
from tests.report.checks import Page, check_page


def read(path: Path) -> tuple[Page, str]:
    page = check_page(path.read_text(encoding="utf-8"))
    return page, " ".join(page.text.replace("\u00a0", " ").split())


@pytest.fixture
def monitor() -> de.Monitor:
    return de.Monitor(make_detector(np.random.default_rng(0).normal(size=200)))


def test_before_the_first_picture(tmp_path: Path, monitor: de.Monitor) -> None:
    write_report(monitor, tmp_path / "page.html")
    _, words = read(tmp_path / "page.html")
    assert "No image has been seen yet." in words and "Over time" not in words


def test_rate_classes_and_pictures(tmp_path: Path, monitor: de.Monitor) -> None:
    rng = np.random.default_rng(1)
    monitor.observe(ids_of(520), labels_of(520), np.abs(rng.normal(size=520)))
    shown = paint(tmp_path / "in" / "strange <b> 1%.png", (10, 200, 10))
    monitor.observe([str(shown)] * 140, ["horse"] * 140, np.full(140, -9.0))
    write_report(monitor, tmp_path / "page.html", title="Line 3", command="deltaenergy monitor")
    page, words = read(tmp_path / "page.html")
    assert "The images have changed, probably since about image 521:" in words and "Line 3" in words
    charts = [chart["aria-label"] or "" for chart in page.all("svg") if chart.get("aria-label")]
    assert any(label.startswith("Share of rejected images over time") for label in charts)
    assert any(label.startswith("Evidence of a change over time") for label in charts)
    assert "53.8%" in words, "140 of the 260 horses among the last 500"
    assert sum((image["src"] or "").startswith("data:image/jpeg") for image in page.all("img")) == 48
    assert any("strange" in (link["href"] or "") for link in page.all("a"))


def test_names_from_the_network_never_lead_to_files(tmp_path: Path, monitor: de.Monitor) -> None:
    secret = paint(tmp_path / "secret.png", (1, 2, 3))
    monitor.observe([str(secret), "<script>alert(1)</script>"], ["dog", "cat"], [-9.0, -9.0], files=False)
    write_report(monitor, tmp_path / "page.html")
    page, words = read(tmp_path / "page.html")
    assert not page.all("img") and not any("secret" in (link["href"] or "") for link in page.all("a"))
    assert str(secret) in words and "<script>alert(1)</script>" in words
