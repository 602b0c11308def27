"""Pages in a real browser: nothing is cut off at any width, scripts do what they say, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.evaluation import compare, evaluate
from deltaenergy.report import write_report
from tests.colours import ColourModel, paint, paint_sets
from tests.report.browser import browser

WIDTHS = (1280, 768, 390)
# A4 without 14 mm on either side, in CSS pixels.
PAPER = 688


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 27 verdicts."""
    root = paint_sets(tmp_path_factory.mktemp("pages"))
    paint(root / "known" / "red" / ("a long name " * 12 + ".png"), (220, 30, 10))
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    detector = Detector(classifier, "delta-energy").calibrate(root / "dark")
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
    found = page.locator("#images li[data-verdict]:visible")
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
    assert 0 < len(rejected) < 28 and page.text_content("#found") == f"{len(rejected)} of 28 images"
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
    page.locator("#images li:visible .enlarge").first.click()
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
    assert page.locator("#images li[data-verdict]").count() == 28
    assert not page.locator("#tools").is_visible() and not page.locator("#large").is_visible()
    link = page.locator("#images li a.enlarge").first.get_attribute("href")
    page.locator("#images li a.enlarge").first.click()
    assert page.url.endswith(link.split("/")[-1]), "the link leads to the file"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation with several open sets and scores, and a comparison: the widest tables there are."""
    root = paint_sets(tmp_path_factory.mktemp("evaluated"))
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    known, dark = [("known", root / "known")], [("a long name " * 4, root / "dark")]
    opened = [(f"grey {i}", [root / "grey" / f"{i}.png"]) for i in range(5)]
    scores = ["mcm", "delta-energy(tau=0.1,c=1)", "max-logit"]
    write_report(evaluate(classifier, scores, known, dark, opened, resamples=10), root / "evaluation.html")
    detectors = {"one": Detector(classifier, "mcm"), "two": Detector(classifier, "max-logit")}
    write_report(compare(detectors, known, dark, opened, resamples=10), root / "comparison.html")
    return root


@pytest.mark.parametrize("name", ["evaluation.html", "comparison.html"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_stay_within_the_screen(chromium: Any, evaluated: Path, name: str, width: int, scheme: str) -> None:
    page = opened(chromium, evaluated / name, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.stacks')].filter(t => t.scrollWidth > t.parentNode.clientWidth + 1).length"
    if width == 390:
        assert page.evaluate(cut) == 0, "on a phone no table of many columns is cut"
    assert page.trouble == []


@pytest.mark.parametrize("name", ["evaluation.html", "comparison.html"])
def test_paper_holds_all_columns_and_what_is_folded(chromium: Any, evaluated: Path, name: str) -> None:
    page = opened(chromium, evaluated / name, viewport={"width": PAPER, "height": 800}, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER, "no column is cut"
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    folded = page.locator("details .facts, details table, details ol").first
    assert folded.is_visible() and folded.bounding_box()["height"] > 20


def test_paper_has_every_picture_whole(chromium: Any, folder: Path) -> None:
    page = opened(chromium, folder / "verdicts.html", viewport={"width": PAPER, "height": 300})
    page.emulate_media(media="print")
    pictures = "[...document.querySelectorAll('#groups img')]"
    assert page.evaluate(f"{pictures}.length") == 28
    assert page.evaluate(f"{pictures}.every(one => one.complete && one.naturalWidth > 0)"), "in sight or not"
    assert page.evaluate("getComputedStyle(document.querySelector('.images li')).breakInside") == "avoid"
    assert not page.locator("#tools").is_visible()


def test_the_first_column_stays_when_a_table_is_scrolled(chromium: Any, evaluated: Path) -> None:
    page = opened(chromium, evaluated / "evaluation.html", viewport={"width": 768, "height": 800})
    moved = page.evaluate(
        """() => {
          const box = [...document.querySelectorAll('.scroll')].find(b => b.scrollWidth > b.clientWidth + 50);
          const first = box.querySelector('tbody th');
          const before = first.getBoundingClientRect().left;
          box.scrollLeft = 50;
          return [box.scrollLeft, first.getBoundingClientRect().left - before];
        }"""
    )
    assert moved[0] == 50 and abs(moved[1]) < 2
