"""Pages in a real browser: nothing is cut off at any width, scripts do what they say, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.report import write_report
from tests.colours import ColourModel, paint, paint_sets
from tests.report.browser import browser

WIDTHS = (1280, 768, 390)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 27 verdicts."""
    root = paint_sets(tmp_path_factory.mktemp("pages"))
    paint(root / "known" / "red" / ("a long name " * 12 + ".png"), (220, 30, 10))
    detector = Detector(ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])).calibrate(root / "dark")
    write_report(detector.predict([root / "known", root / "grey"]), root / "verdicts.html", detector=detector)
    return root


def opened(chromium: Any, file: Path, **options: Any) -> Any:
    """The page, which fails the test if it raises an error or asks for anything but files."""
    page = chromium.new_context(**options).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: trouble.append(asked.url) if asked.url.startswith("http") else None)
    page.goto(file.as_uri())
    page.trouble = trouble
    return page


def in_sight(page: Any) -> list[str]:
    found = page.locator("#pictures li[data-verdict]:visible")
    return [str(card.get_attribute("data-name")) for card in found.all()]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen(chromium: Any, folder: Path, width: int) -> None:
    page = opened(chromium, folder / "verdicts.html", viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.trouble == []


def test_filter_and_sort(chromium: Any, folder: Path) -> None:
    page = opened(chromium, folder / "verdicts.html")
    everything = in_sight(page)
    assert len(everything) == 28
    page.select_option("#of-verdict", "none of these")
    rejected = in_sight(page)
    assert 0 < len(rejected) < 28 and page.text_content("#found") == f"{len(rejected)} of 28 pictures"
    page.select_option("#of-verdict", "known")
    page.select_option("#of-class", "blue")
    assert in_sight(page) and all("blue" in name for name in in_sight(page))
    page.select_option("#of-class", "")
    page.select_option("#of-verdict", "")
    page.select_option("#order", "low")
    scores = [float(card.get_attribute("data-score")) for card in page.locator("#flat li").all()]
    assert scores == sorted(scores) and len(scores) == 28
    page.select_option("#order", "name")
    assert in_sight(page) == sorted(in_sight(page))
    page.fill("#of-name", "grey/3")
    assert [Path(name).name for name in in_sight(page)] == ["3.png"]
    page.fill("#of-name", "")
    page.select_option("#order", "")
    assert in_sight(page) == everything, "back to where they were"
    assert page.trouble == []


def test_a_click_enlarges_the_file_itself_and_arrows_go_on(chromium: Any, folder: Path) -> None:
    page = opened(chromium, folder / "verdicts.html")
    first, second = in_sight(page)[:2]
    page.locator("#pictures li:visible .enlarge").first.click()
    large = page.locator("#large img")
    assert Path(large.get_attribute("src").removeprefix("file://").replace("%20", " ")).name == Path(first).name
    page.wait_for_function("document.querySelector('#large img').naturalWidth == 16")
    page.keyboard.press("ArrowRight")
    assert Path(large.get_attribute("src").replace("%20", " ")).name == Path(second).name
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('large').open")
    assert page.url.endswith("verdicts.html") and page.trouble == []


def test_without_scripts_everything_is_there(chromium: Any, folder: Path) -> None:
    page = opened(chromium, folder / "verdicts.html", java_script_enabled=False)
    assert page.locator("#pictures li[data-verdict]").count() == 28
    assert not page.locator("#tools").is_visible() and not page.locator("#large").is_visible()
    link = page.locator("#pictures li a.enlarge").first.get_attribute("href")
    page.locator("#pictures li a.enlarge").first.click()
    assert page.url.endswith(link.split("/")[-1]), "the link leads to the file"
