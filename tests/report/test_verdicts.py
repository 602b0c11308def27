"""The page of verdicts: what it shows, in which order, where its links lead, and that no name can break it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.data.items import ImageItem
from deltaenergy.report import verdicts as page_of_verdicts
from deltaenergy.report import write_report
from deltaenergy.report.images import file_link
from deltaenergy.report.verdicts import _embedded_of_each
from deltaenergy.source import load_images
from tests.colours import ColourModel, paint, paint_sets
from tests.detector.made import made
from tests.report.checks import Page, check_page


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path)


@pytest.fixture
def detector(sets: Path) -> Detector:
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    return Detector(classifier, "delta-energy").calibrate(sets / "dark")


def read(path: Path, *, verdicts: bool = True) -> Page:
    return check_page(path.read_text(encoding="utf-8"), verdicts=verdicts)


def words(page: Page) -> str:
    return " ".join(page.text.replace("\u00a0", " ").split())


def cards(page: Page) -> list[dict[str, str | None]]:
    return [attributes for attributes in page.all("li") if "data-verdict" in attributes]


def test_counts_groups_and_pictures(tmp_path: Path, sets: Path, detector: Detector) -> None:
    (sets / "grey" / "broken.png").write_bytes(b"?")
    predictions = detector.predict([sets / "known" / "red", sets / "grey"])
    write_report(predictions, tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    rejected = sum(verdict.is_ood for verdict in predictions)
    text = words(page)
    assert f"15 images: {15 - rejected} known (3 classes), {rejected} none of these." in text
    assert 0 < rejected < 15
    assert f"None of these ({rejected} images)" in text and "unknown" not in text.lower()
    assert "1 image could not be read" in text and "broken.png" in text
    assert len(cards(page)) == 15
    assert sum(card["data-verdict"] == "none of these" for card in cards(page)) == rejected


def test_the_summary_says_which_guarantee_stands(tmp_path: Path, sets: Path, detector: Detector) -> None:
    known = len(detector.calibration_scores)

    def told(fdr: float | None = None) -> str:
        predictions = detector.predict(sets / "grey", fdr=fdr)
        write_report(predictions, tmp_path / "page.html", detector=detector)
        return words(read(tmp_path / "page.html"))

    assert f"lowest score of the {known} images" in told() and "needs 19 images" in told()
    controlled = told(0.5)
    assert "At most 50% of the rejected images are known in expectation." in controlled
    assert "needs 19 images" not in controlled.split("Images Borderline images")[0].split("Summary")[-1]
    detector.calibrate(sets / "dark", keep=0.5)
    assert str(detector.guarantee) in told() and "50% of new images like these are kept on average" in told()


def test_closest_to_the_threshold_first_in_every_group(tmp_path: Path, sets: Path, detector: Detector) -> None:
    predictions = detector.predict([sets / "known", sets / "grey"])
    write_report(predictions, tmp_path / "page.html", detector=detector)
    assert detector.threshold is not None
    margin = {verdict.path: abs(verdict.score - detector.threshold) for verdict in predictions}
    groups: dict[str, list[float]] = {}
    for card in cards(read(tmp_path / "page.html")):
        group = "none" if card["data-verdict"] == "none of these" else str(card["data-class"])
        groups.setdefault(group, []).append(margin[str(card["data-name"])])
    assert set(groups) == {"red", "green", "blue", "none"}
    for found in groups.values():
        assert found == sorted(found)


def margins(page: Page) -> dict[str, float]:
    return {str(card["data-name"]): float(str(card["data-margin"])) for card in cards(page)}


def test_borderline_goes_by_the_threshold_of_the_class(tmp_path: Path, sets: Path) -> None:
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    detector = Detector(classifier, "max-logit").calibrate(sets / "dark", 0.5, by_class=True)
    bounds = detector.class_thresholds
    assert len(set(bounds.values())) == 3
    predictions = detector.predict([sets / "known", sets / "grey"])
    write_report(predictions, tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    assert margins(page) == pytest.approx({one.path: abs(one.score - bounds[one.label]) for one in predictions})
    groups: dict[str, list[float]] = {}
    for card in cards(page):
        group = "none" if card["data-verdict"] == "none of these" else str(card["data-class"])
        groups.setdefault(group, []).append(margins(page)[str(card["data-name"])])
    assert all(found == sorted(found) for found in groups.values())
    assert "By class: 50% also holds within each class" in words(page)


def test_borderline_goes_by_what_was_kept_where_a_rate_decided(tmp_path: Path, sets: Path, detector: Detector) -> None:
    predictions = detector.predict([sets / "known", sets / "grey"], fdr=0.5)
    kept = [one.score for one in predictions if not one.is_ood]
    assert 0 < len(kept) < len(predictions) and detector.threshold != min(kept)
    write_report(predictions, tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    assert margins(page) == pytest.approx({one.path: abs(one.score - min(kept)) for one in predictions})
    assert "At most 50% of the rejected images" in words(page) and "at the threshold" not in words(page)


def test_links_lead_to_the_files_from_where_the_page_lies(tmp_path: Path, sets: Path, detector: Detector) -> None:
    strange = paint(sets / "known" / "red" / "http: 50% #1 ü.png", (230, 0, 0))
    place = tmp_path / "out" / "deep" / "page.html"
    write_report(detector.predict([strange]), place, detector=detector)
    links = {str(link["href"]) for link in read(place).all("a") if str(link["href"]).startswith("./")}
    assert [(place.parent / unquote(link)).resolve() for link in links] == [strange.resolve()]


def test_pictures_beyond_the_embedded_ones_are_shown_from_their_files(
    tmp_path: Path, sets: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_of_verdicts, "EMBEDDED", 6)
    monkeypatch.setattr(page_of_verdicts, "IN_SIGHT", 3)
    write_report(detector.predict([sets / "known", sets / "grey"]), tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    sources = [str(image["src"]) for image in page.all("img")]
    assert sum(source.startswith("data:image/jpeg") for source in sources) == 6
    assert sum(source.startswith("./") for source in sources) == 27 - 6
    assert "5 more" in words(page), "of 8 grey pictures, three are in sight"


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([5, 5], 4, [2, 2]),
        ([1, 9], 6, [1, 5]),
        ([3, 3, 3], 100, [3, 3, 3]),
        ([0, 4], 3, [0, 3]),
        ([9, 9, 9], 2, [1, 1, 0]),
    ],
)
def test_embedded_pictures_are_shared_out_evenly(sizes: list[int], total: int, expected: list[int]) -> None:
    assert _embedded_of_each(sizes, total) == expected


def test_pictures_in_an_archive_are_shown_without_a_link(tmp_path: Path, sets: Path, detector: Detector) -> None:
    archive = tmp_path / "pictures.tar"
    with tarfile.open(archive, "w") as tar:
        data = (sets / "known" / "red" / "0.png").read_bytes()
        entry = tarfile.TarInfo("0.png")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    items = load_images(archive)
    write_report(replace(detector.predict(items), items=items), tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    assert [str(image["src"])[:15] for image in page.all("img")] == ["data:image/jpeg", "data:,"]
    assert not [link for link in page.all("a") if str(link["href"]).startswith("./")]


def test_no_verdicts_at_all(tmp_path: Path, sets: Path, detector: Detector) -> None:
    (tmp_path / "broken.png").write_bytes(b"?")
    write_report(detector.predict([tmp_path / "broken.png"]), tmp_path / "page.html", detector=detector)
    assert "0 images: 0 known" in words(read(tmp_path / "page.html", verdicts=False))


def test_scores_that_are_no_numbers_come_last(tmp_path: Path, detector: Detector) -> None:
    verdicts = made(["a", "b"], ["red", "red"], [float("nan"), -9.0], [True, True])
    write_report(verdicts, tmp_path / "page.html", detector=detector)
    page = read(tmp_path / "page.html")
    assert [card["data-name"] for card in cards(page)] == ["b", "a"]
    assert all(str(card["data-score"]) not in {"nan", "inf"} for card in cards(page))


def test_hostile_names_are_text(tmp_path: Path, sets: Path) -> None:
    evil_class, evil_file = "</script><script>alert('red')//", '<img src=x onerror=alert(1)>".png'
    paint(sets / "known" / "red" / evil_file, (200, 0, 0))
    made = Detector(ZeroShotClassifier(ColourModel(), [evil_class, "green"]), "delta-energy").calibrate(sets / "dark")
    write_report(made.predict(sets / "known"), tmp_path / "page.html", detector=made, title=evil_class)
    page = read(tmp_path / "page.html")
    assert evil_class in page.text and evil_file in page.text


def test_a_file_that_is_gone_has_no_link(tmp_path: Path) -> None:
    assert file_link(ImageItem("gone", tmp_path / "gone.png"), tmp_path) is None
    assert file_link(ImageItem("no such\0name", b""), tmp_path) is None
