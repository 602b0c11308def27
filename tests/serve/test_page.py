"""The page in a real browser: upload, slider, keyboard alone, errors, zip, no request elsewhere, colour schemes."""

from __future__ import annotations

import csv
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.data.items import ImageItem
from deltaenergy.scores.registry import DEFAULT_SCORE
from deltaenergy.serve.app import create_app
from deltaenergy.serve.engine import at_rank
from deltaenergy.serve.guard import Keys
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
        # Files that are added before the page knows its detector are classified again when it does.
        self.page.locator("#about", has_text=".").wait_for()

    def upload(self, paths: list[str]) -> None:
        self.page.set_input_files("#files", paths)
        self.looked_at()

    def looked_at(self) -> None:
        self.page.locator("#status", has_text="classified.").wait_for()

    def move(self, rank: int) -> str:
        """Move the slider, wait for the service's answer, and return the guarantee that is shown then."""
        with self.page.expect_response("**/v1/thresholds") as answer:
            self.page.locator("#rank").fill(str(rank))
        text = str(answer.value.json()["guarantee"])
        self.page.locator("#guarantee", has_text=text).wait_for()
        return str(self.page.locator("#guarantee").text_content())

    def own_classes(self, names: str) -> None:
        self.page.select_option("#by", "")
        self.page.fill("#classes", names)
        self.page.locator("#classes").blur()

    def save(self, button: str, path: Path) -> Path:
        """What a button downloads."""
        with self.page.expect_download() as download:
            self.page.click(button)
        download.value.save_as(path)
        return path

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
    seen = {tuple(expected)}
    for rank in (30, 1, 5, 4):
        lower = at_rank(detectors["colours"].require_calibration(), rank)
        guarantee = visit.move(rank)
        by_rank = [
            "none of these" if lower.rejects(np.array([verdict.score]))[0] else verdict.label
            for verdict in detectors["colours"].predict(pictures)
        ]
        assert visit.verdicts() == by_rank and guarantee == str(lower.guarantee)
        seen.add(tuple(by_rank))
    assert len(seen) > 2
    visit.page.click("#reset")
    visit.page.locator("#guarantee", has_text=str(detectors["colours"].guarantee)).wait_for()
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
    before = str(visit.page.locator("#threshold").text_content())
    visit.page.locator("#rank").focus()
    for _ in range(8):
        keyboard.press("ArrowRight")
    visit.page.locator("#threshold").filter(has_not_text=before).wait_for()
    assert "kept on average" in str(visit.page.locator("#rank").get_attribute("aria-valuetext"))
    visit.check_quiet()


def test_a_wrong_file_is_told_beside_the_others(
    browser: Any, address: str, pictures: list[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "<b>notes.txt"
    wrong.write_text("no picture")
    visit = Visit(browser, address)
    visit.upload([*pictures[:1], str(wrong)])
    first, second = visit.verdicts()
    assert "unreadable: not an image" in second and "unreadable" not in first
    assert visit.page.locator(".card .name").nth(1).text_content() == "<b>notes.txt"
    assert "1 unreadable" in str(visit.page.locator("#counts").text_content())
    visit.own_classes("x" * 300)
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
    visit.own_classes(", ".join(CLASSES))
    visit.upload(known)
    visit.page.click("#known")
    visit.page.locator("#counts", has_text="6 known, 0 none of these").wait_for()
    saved = visit.save("#download", tmp_path / "detector.zip")
    zipfile.ZipFile(saved).extractall(tmp_path / "zip")
    loaded = de.Detector.load(tmp_path / "zip" / "detector", model=lite)
    assert loaded.classifier.classes == tuple(CLASSES) and len(loaded.calibration_scores) == 6
    rows = visit.save("#export", tmp_path / "verdicts.csv").read_text().splitlines()
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
        page.locator("#status", has_text="classified.").wait_for()
        assert page.locator(".card .verdict").count() == len(pictures)
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
    card.get_by_role("button", name="Explain").click()
    card.get_by_role("button", name="Show the image").wait_for()
    assert (image.get_attribute("src") or "").startswith("data:image/png;base64,")
    assert (image.get_attribute("alt") or "").startswith("Heatmap of picture 0.png: what supports")
    assert "Yellow supports" in card.inner_text()
    card.get_by_role("button", name="Show the image").click()
    assert image.get_attribute("src") == picture
    assert (image.get_attribute("alt") or "").startswith("picture 0.png: ")
    visit.check_quiet()


def drawn(folder: Path, seeds: range) -> list[str]:
    """Images as files."""
    for seed in seeds:
        (folder / f"{seed}.png").write_bytes(png(seed))
    return [str(folder / f"{seed}.png") for seed in seeds]


def test_the_downloaded_detector_is_the_one_that_the_page_showed(
    browser: Any, address: str, lite: Any, tmp_path: Path
) -> None:
    """More known images than a request may have, the slider moved, and other images added."""
    visit = Visit(browser, address)
    visit.own_classes(", ".join(CLASSES))
    assert visit.page.locator("#score").input_value() == DEFAULT_SCORE
    known, others = drawn(tmp_path, range(700, 770)), drawn(tmp_path, range(900, 912))
    visit.upload(known)
    visit.page.click("#known")
    visit.page.locator("#guarantee", has_text="(set on 70 images)").wait_for()
    for rank in (None, 40):
        if rank is not None:
            visit.move(rank)
        visit.page.set_input_files("#files", others)
        visit.page.locator("#status", has_text="12 images classified.").wait_for()
        rows = list(csv.DictReader(visit.save("#export", tmp_path / "shown.csv").open(newline="")))
        zipfile.ZipFile(visit.save("#download", tmp_path / "detector.zip")).extractall(tmp_path / "zip")
        loaded = de.Detector.load(tmp_path / "zip" / "detector", model=lite)
        assert loaded.score.spec == DEFAULT_SCORE and str(loaded.guarantee) == visit.page.inner_text("#guarantee")
        known_scores = np.array([float(row["score"]) for row in rows[:70]])
        assert np.array_equal(loaded.calibration_scores, np.sort(known_scores)), "to the last bit"
        assert loaded.threshold == np.sort(known_scores)[(3 if rank is None else rank) - 1]
        scores = np.array([float(row["score"]) for row in rows])
        assert [row["is_ood"] for row in rows] == [str(one).lower() for one in loaded.rejects(scores)]
        assert [float(row["p_value"]) for row in rows] == loaded.p_values(scores).tolist()
        assert [one.is_ood for one in loaded.predict(others)] == [row["is_ood"] == "true" for row in rows[-12:]]
        assert {row["is_ood"] for row in rows} == {"true", "false"}
    visit.check_quiet()


def test_a_click_is_not_lost_while_the_class_names_have_the_focus(
    browser: Any, address: str, pictures: list[str]
) -> None:
    visit = Visit(browser, address)
    visit.own_classes("sky, grass")
    visit.upload(pictures)
    visit.page.locator("#classes").fill("wall, floor, roof")
    visit.page.click("#known")
    visit.page.locator("#counts", has_text="4 known, 0 none of these").wait_for()
    assert set(visit.verdicts()) <= {"wall", "floor", "roof"}
    assert visit.page.locator("#decide").is_visible()
    visit.check_quiet()


def test_the_button_waits_until_all_images_are_classified(
    browser: Any, address: str, pictures: list[str], tmp_path: Path
) -> None:
    visit = Visit(browser, address)
    visit.own_classes(", ".join(CLASSES))
    held: list[Any] = []
    visit.page.route("**/v1/classify", lambda route: held.append(route) if not held else route.continue_())
    with visit.page.expect_response("**/v1/classify"):
        visit.page.set_input_files("#files", drawn(tmp_path, range(8)))
    visit.page.locator("#status", has_text="4 of 8 images").wait_for()
    assert visit.page.locator("#known").is_disabled()
    held[0].continue_()
    visit.looked_at()
    assert visit.page.locator("#known").is_enabled()
    visit.check_quiet()


def test_an_error_is_shown_where_the_user_looks(browser: Any, address: str, tmp_path: Path) -> None:
    visit = Visit(browser, address, viewport={"width": 390, "height": 700})
    visit.own_classes(", ".join(CLASSES))
    visit.upload(drawn(tmp_path, range(20)))
    visit.page.route("**/v1/thresholds", lambda route: route.fulfill(status=422, json={"error": "nothing fits"}))
    visit.page.click("#known")
    told = visit.page.locator("#trouble", has_text="nothing fits")
    for place in (0, 10**6):
        visit.page.evaluate("y => window.scrollTo(0, y)", place)
        box = told.bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 700
    assert visit.page.locator("#decide").is_hidden(), "there is no threshold"
    told.click()
    assert told.is_hidden()
    visit.said = [text for text in visit.said if "422" not in text]
    visit.check_quiet()


@pytest.mark.parametrize(("score", "by_class"), [("mahalanobis", False), ("mcm", True)])
def test_without_a_single_threshold_there_is_no_slider(
    browser: Any, lite: Any, pictures: list[str], score: str, by_class: bool
) -> None:
    known = [ImageItem(str(seed), png(seed), CLASSES[seed % 4]) for seed in range(300, 420)]
    classifier = de.ZeroShotClassifier(lite, CLASSES)
    detector = de.Detector(classifier, score).calibrate(known, 0.5, by_class=by_class, batch_size=8)
    for address in serving({"one": detector}, None):
        visit = Visit(browser, address)
        visit.upload(pictures)
        assert visit.page.locator("#decide").is_hidden()
        assert str(detector.guarantee) in visit.page.inner_text("#about")
        assert visit.verdicts() == ["none of these" if v.is_ood else v.label for v in detector.predict(pictures)]
        visit.check_quiet()
