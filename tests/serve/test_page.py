"""The page in a real browser: upload, slider, keyboard alone, errors, zip, no request elsewhere, colour schemes."""

from __future__ import annotations

import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.serve.app import create_app
from deltaenergy.serve.keys import Keys
from deltaenergy.serve.server import listen, make_engine
from tests.serve.conftest import CLASSES, PICTURES, png

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
PATIENCE = 120_000


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for i, data in enumerate(PICTURES[:4]):
        path = folder / f"picture {i}.png"
        path.write_bytes(data)
        paths.append(str(path))
    return paths


def serving(detectors: Any, model: Any, keys: Keys | None = None) -> Iterator[str]:
    import uvicorn

    bound = listen("127.0.0.1", 0)
    engine = make_engine(list(detectors.items()), model)
    server = uvicorn.Server(uvicorn.Config(create_app(engine, keys), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)
    bound.close()


@pytest.fixture(scope="module")
def address(detectors: Any, lite: Any) -> Iterator[str]:
    yield from serving(detectors, lite)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """A page with what it said and asked for."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.address, self.said, self.asked = address, [], []
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.locator("#by option").first.wait_for(state="attached")

    def upload(self, paths: list[str]) -> None:
        self.page.set_input_files("#files", paths)
        self.looked_at()

    def looked_at(self) -> None:
        self.page.locator("#status", has_text="looked at.").wait_for()

    def verdicts(self) -> list[str]:
        return [str(text) for text in self.page.locator(".card .verdict").all_text_contents()]

    def check_quiet(self) -> None:
        assert self.said == []
        own = (self.address, "blob:", "data:")
        assert [url for url in self.asked if not url.startswith(own)] == []
        self.context.close()


def test_upload_and_slider(browser: Any, address: str, pictures: list[str], detectors: Any) -> None:
    visit = Visit(browser, address)
    visit.upload(pictures)
    expected = ["none of these" if v.is_ood else v.label for v in detectors["colours"].predict(pictures)]
    assert visit.verdicts() == expected
    slider = visit.page.locator("#threshold")
    slider.fill("1000")
    assert visit.verdicts() == ["none of these"] * 4
    slider.fill("0")
    assert visit.verdicts() == [v.label for v in detectors["colours"].predict(pictures)]
    assert "Keeps 100 %" in str(visit.page.locator("#kept").text_content())
    visit.page.click("#reset")
    assert visit.verdicts() == expected
    visit.page.select_option("#by", "letters")
    visit.looked_at()
    visit.page.locator("#about", has_text="Classes: a, b").wait_for()
    visit.check_quiet()


def test_keyboard_alone(browser: Any, address: str, pictures: list[str]) -> None:
    """Tab reaches every control in order; the slider moves by arrow keys; the file dialogue opens by Enter."""
    visit = Visit(browser, address)
    keyboard, reached = visit.page.keyboard, []
    for _ in range(4):
        keyboard.press("Tab")
        reached.append(visit.page.evaluate("() => document.activeElement.id"))
        if reached[-1] == "choose":
            break
    assert reached[0] == "by" and reached[-1] == "choose"
    for attempt in range(1, 7):  # a busy browser may miss a key
        try:
            with visit.page.expect_file_chooser(timeout=20_000) as chooser:
                keyboard.press("Enter")
            break
        except playwright.TimeoutError:
            assert attempt < 6, "Enter opens no file dialogue"
    chooser.value.set_files(pictures)
    visit.looked_at()
    before = visit.page.locator("#threshold-value").text_content()
    visit.page.locator("#threshold").focus()
    for _ in range(30):
        keyboard.press("ArrowRight")
    assert visit.page.locator("#threshold-value").text_content() != before
    assert "keeps" in str(visit.page.locator("#threshold").get_attribute("aria-valuetext"))
    visit.check_quiet()


def test_a_wrong_file_is_told_beside_the_others(
    browser: Any, address: str, pictures: list[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "<b>notes.txt"
    wrong.write_text("no picture")
    visit = Visit(browser, address)
    visit.upload([*pictures[:1], str(wrong)])
    first, second = visit.verdicts()
    assert "not read: not an image" in second and "not read" not in first
    assert visit.page.locator(".card .name").nth(1).text_content() == "<b>notes.txt"
    assert "1 unreadable" in str(visit.page.locator("#counts").text_content())
    visit.page.select_option("#by", "")
    visit.page.fill("#classes", "x" * 300)
    visit.page.locator("#classes").blur()
    visit.page.locator("#trouble", has_text="more than 200 characters").wait_for()
    # A refused request is an error for the browser's console, and for nothing else.
    visit.said = [text for text in visit.said if "422" not in text]
    visit.check_quiet()


def test_own_classes_calibrated_and_downloaded(
    browser: Any, address: str, pictures: list[str], lite: Any, tmp_path: Path
) -> None:
    known = []
    for seed in range(6):
        path = tmp_path / f"{seed}.png"
        path.write_bytes(png(500 + seed))
        known.append(str(path))
    visit = Visit(browser, address)
    visit.page.select_option("#by", "")
    visit.page.fill("#classes", ", ".join(CLASSES))
    visit.page.locator("#classes").blur()
    visit.upload(known)
    visit.page.click("#known")
    assert "6 known, 0 none of these" in str(visit.page.locator("#counts").text_content())
    with visit.page.expect_download() as download:
        visit.page.click("#download")
    saved = tmp_path / "detector.zip"
    download.value.save_as(saved)
    zipfile.ZipFile(saved).extractall(tmp_path / "zip")
    loaded = de.Detector.load(tmp_path / "zip" / "detector", model=lite)
    assert loaded.classifier.classes == tuple(CLASSES) and len(loaded.calibration_scores) == 6
    with visit.page.expect_download() as download:
        visit.page.click("#export")
    download.value.save_as(tmp_path / "verdicts.csv")
    rows = (tmp_path / "verdicts.csv").read_text().splitlines()
    assert rows[0].startswith("path,label,confidence,score") and len(rows) == 7
    visit.check_quiet()


def test_a_key_is_asked_for(browser: Any, detectors: Any, lite: Any, pictures: list[str]) -> None:
    for address in serving(detectors, lite, Keys(["a-key-that-is-long-enough"])):
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.locator("#trouble", has_text="API key").wait_for()
        page.fill("#key", "a-key-that-is-long-enough")
        page.keyboard.press("Enter")
        page.locator("#by option").first.wait_for(state="attached")
        page.set_input_files("#files", pictures)
        page.locator("#status", has_text="looked at.").wait_for()
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_in_either_colour_scheme(
    browser: Any, address: str, pictures: list[str], scheme: str, width: int
) -> None:
    visit = Visit(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    visit.upload(pictures)
    wide, there = visit.page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= there
    background = visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in background[4:-1].split(",")[:3]) > 380
    assert light == (scheme == "light")
    assert all(visit.page.locator(".card img").evaluate_all("all => all.map((one) => one.alt)"))
    visit.check_quiet()


def test_the_description_of_the_api_is_readable_without_a_network(browser: Any, address: str) -> None:
    context = browser.new_context()
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address + "docs")
    page.locator(".route", has_text="/v1/verdicts").first.wait_for()
    assert all(url.startswith((address, "data:")) for url in asked)
    context.close()


def test_a_picture_s_map_is_shown_when_it_is_asked_for(browser: Any, address: str, pictures: list[str]) -> None:
    visit = Visit(browser, address)
    visit.upload(pictures[:1])
    card = visit.page.locator(".card").first
    image = card.locator("img")
    picture = image.get_attribute("src")
    card.get_by_role("button", name="Show what decided").click()
    card.get_by_role("button", name="Show the picture").wait_for()
    assert (image.get_attribute("src") or "").startswith("data:image/png;base64,")
    assert (image.get_attribute("alt") or "").startswith("Map over picture 0.png of what speaks for")
    assert "Yellow: speaks most for" in card.inner_text()
    card.get_by_role("button", name="Show the picture").click()
    assert image.get_attribute("src") == picture
    assert (image.get_attribute("alt") or "").startswith("picture 0.png: ")
    visit.check_quiet()
