"""Sort a folder through the command line: a page, copies by verdict and class, and back again."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.runner import Runner
from tests.cli.world import write_images
from tests.report.checks import check_page


@pytest.fixture
def base(tiny_clip_folder: Path) -> list[str]:
    return ["--model", str(tiny_clip_folder), "--classes", "dog,cat,red car"]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def files_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_sort_a_folder_look_and_take_it_back(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    (photos / "cat" / "text.jpg").write_text("This is a text.")
    before = files_in(photos)
    detector, page, place = tmp_path / "d", tmp_path / "page.html", tmp_path / "sorted"
    assert command("calibrate", photos, *base, "--out", detector, "--keep", "0.4").code == 1
    rows = rows_of(command("score", photos, "--detector", detector, "--top-k", 2).out)
    result = command("sort", photos, "--detector", detector, "--report", page, "--into", place, "--how", "move")
    assert result.code == 1, "one could not be read"
    rejected = [row for row in rows if row["verdict"] == "none of these"]
    assert len(rows) == 8 and 0 < len(rejected) < 8
    assert {row["verdict"] for row in rows} == {"known", "none of these"}
    assert f"{8 - len(rejected)} known, {len(rejected)} none of these, 1 unreadable." in result.err
    for row in rows:
        assert row["label_2"] != row["label"]
        assert float(row["confidence"]) >= float(row["confidence_2"]) > 0
    # Every file lies where its row says, and only the unreadable one stayed.
    assert list(files_in(photos)) == ["cat/text.jpg"]
    for row in rows:
        folder = place / "none of these" if row in rejected else place / "known" / row["label"]
        old = before[Path(row["path"]).relative_to(photos).as_posix()]
        assert old in [path.read_bytes() for path in folder.iterdir()]
    found = check_page(page.read_text(encoding="utf-8"), verdicts=True)
    links = [str(link["href"]) for link in found.all("a") if str(link["href"]).startswith("./")]
    assert len(links) == 16 and all(link.startswith("./sorted/") for link in links), "to where they were moved"
    dry = command("undo", place / "undo-1.jsonl", "--dry-run", "--json")
    assert dry.json == {"how": "move", "done": 8, "skipped": [], "dry_run": True}
    assert "8 files moved back" in command("undo", place / "undo-1.jsonl").err
    assert files_in(photos) == before and not place.exists()


def test_a_dry_run_says_what_would_be_done(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    before = files_in(tmp_path)
    result = command("sort", photos, *base, "--id", photos, "--into", tmp_path / "sorted", "--dry-run")
    assert result.code == 0
    assert "Dry run: 8 files would be copied" in result.err and "none of these" in result.err
    assert files_in(tmp_path) == before and not (tmp_path / "sorted").exists()


def test_the_same_file_names_and_what_is_there_already(command: Runner, base: list[str], photos: Path) -> None:
    place = photos.parent / "sorted"
    for _ in range(2):
        done = command("sort", photos, *base, "--id", photos, "--into", place, "--how", "link", "--keep", 1, "--json")
        assert done.code == 0 and done.json["done"] == len(done.json["files"]) == 8
    links = list(place.rglob("*.png"))
    assert len(links) == 16 and all(link.is_symlink() for link in links)
    assert {link.resolve() for link in links} == set(photos.rglob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--into", "SORTED", "-s", "mcm"], "sort needs a threshold"),
        (["--id", ".", "--into", "SORTED", "--how", "mvoe"], "'move'"),
        (["--id", ".", "--into", "INSIDE"], "--into"),
        (["--id", ".", "--into", "SORTED", "-s", "mcm,msp"], "--score must be one score"),
        (["--id", ".", "--into", "SORTED", "--report", "page.pdf"], "must end in .html"),
        (["--id", ".", "--into", "A FILE"], "is a file"),
    ],
)
def test_wrong_use_is_told_before_a_model_is_loaded(
    command: Runner,
    base: list[str],
    photos: Path,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deltaenergy.models.on.On.load_model", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "file").touch()
    places = {".": photos, "SORTED": tmp_path / "sorted", "INSIDE": photos / "sorted", "A FILE": tmp_path / "file"}
    before = files_in(tmp_path)
    result = command("sort", photos, *base, *[places.get(argument, argument) for argument in arguments])
    assert result.code == 2 and message in result.err and result.out == ""
    assert files_in(tmp_path) == before


def test_a_report_needs_verdicts(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    result = command("score", photos, *base, "-s", "mcm", "--report", tmp_path / "page.html")
    assert result.code == 2 and "--report needs a threshold" in result.err


def test_patterns_reach_into_folders_that_are_made_later(command: Runner, base: list[str], photos: Path) -> None:
    refused = command("sort", f"{photos}/**/*.png", *base, "--id", photos, "--into", photos / "sorted")
    assert refused.code == 2 and "read from" in refused.err
    taken = command("sort", f"{photos}/cat/*.png", *base, "--id", photos, "--into", photos / "sorted")
    assert taken.code == 0


def test_images_in_archives_and_stores_are_refused_tables_are_taken(
    command: Runner, base: list[str], photos: Path, tmp_path: Path
) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(photos / "cat" / "0.png", "0.png")
    store = tmp_path / "store"
    assert command("features", photos, "--out", store, *base[:2]).code == 0
    for source in (tmp_path / "a.tar", store):
        result = command("sort", source, *base, "--id", photos, "--into", tmp_path / "sorted", "--how", "move")
        assert result.code == 2 and "feature" in result.err.lower(), source
    (tmp_path / "list.csv").write_text("path\nphotos/cat/0.png\n", encoding="utf-8")
    result = command("sort", tmp_path / "list.csv", *base, "--id", photos, "--into", tmp_path / "sorted")
    assert result.code == 0 and len(list((tmp_path / "sorted").rglob("0.png"))) == 1


def test_the_closing_line(command: Runner, base: list[str], photos: Path) -> None:
    assert "8 scored, 0 unreadable." in command("score", photos, *base, "-s", "mcm").err
    result = command("score", photos, *base, "--id", photos, "-s", "mcm", "--json")
    counts = result.json["counts"]
    assert counts["known"] + counts["none of these"] == 8
    assert f"{counts['known']} known, {counts['none of these']} none of these, 0 unreadable." in result.err
    assert {row["verdict"] for row in result.json["images"]} <= {"known", "none of these"}


def test_undo_of_what_is_no_undo_file(command: Runner, tmp_path: Path) -> None:
    for name in ("absent.jsonl", "."):
        result = command("undo", tmp_path / name)
        assert result.code == 2 and "undo-….jsonl" in result.err


def test_real_pictures_are_sorted(command: Runner, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "images" / "pacs" / "photo"
    strangers = shared_data / "images" / "dtd10"
    if not source.is_dir() or not strangers.is_dir():
        pytest.skip("the pictures of PACS or DTD are not there")
    inbox, known = tmp_path / "inbox", tmp_path / "known"
    for label in ("dog", "elephant", "guitar"):
        files = sorted((source / label).iterdir())
        for i, path in enumerate(files[:20]):
            target = (known / label if i < 14 else inbox) / f"{label} {path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    for kind in sorted(strangers.iterdir())[:6]:
        (inbox / f"stranger {kind.name}.jpg").symlink_to(sorted(kind.iterdir())[0])
    result = command(
        "sort", inbox, "--classes", "dog,elephant,guitar", "--id", known, "--into", tmp_path / "s", "--json"
    )
    assert result.code == 0
    right = [p for p in (tmp_path / "s" / "known").rglob("*.*") if p.name.startswith(p.parent.name)]
    rejected = [p for p in (tmp_path / "s" / "none of these").iterdir() if p.name.startswith("stranger")]
    assert len(right) >= 15 and len(rejected) >= 5


def test_a_store_is_not_a_folder_of_images_for_reports(command: Runner, base: list[str], tmp_path: Path) -> None:
    """A store's pictures are found by their paths, where these still exist."""
    pictures = write_images(tmp_path / "p", ["0.png", "1.png"])
    assert command("features", pictures, "--out", tmp_path / "store", *base[:2]).code == 0
    page = tmp_path / "page.html"
    assert command("score", tmp_path / "store", *base, "--id", pictures, "--report", page).code == 0
    found = check_page(page.read_text(encoding="utf-8"), verdicts=True)
    assert sum(str(image["src"]).startswith("data:image") for image in found.all("img")) == 2
