"""The one walk: everything in a folder comes once, in order, and what cannot be read comes with the reason."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, features

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.formats.walk import MOST_LINKS_TO_A_FOLDER
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import labelled_folders, load_images
from tests.data.hostile import PROBLEMS, hostile
from tests.data.locked import lock
from tests.sampling import examples

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this platform")

GOOD = ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "photos"
    for name in GOOD:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name)
    with hostile(folder):
        yield folder


def reason(item: ImageItem) -> str | None:
    try:
        load_rgb(item)
    except UnreadableImage as error:
        return str(error)
    return None


def outcome(items: list[ImageItem], folder: Path) -> dict[str, str | None]:
    return {Path(item.id).relative_to(folder).as_posix(): reason(item) for item in items}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF"])
def test_images_without_an_ending_are_known_by_their_first_bytes(tmp_path: Path, kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow writes no AVIF")
    folder = tmp_path / "cat"
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(folder / "IMG_0001", kind)
    (folder / "linked").symlink_to(folder / "IMG_0001")
    for name, data in {"README": b"BMX bikes", "empty": b"", "notes.txt": (folder / "IMG_0001").read_bytes()}.items():
        (folder / name).write_bytes(data)
    expected = [(f"{folder}/{name}", "cat", None) for name in ("IMG_0001", "linked")]
    for items in (load_images(tmp_path), labelled_folders(tmp_path)):
        assert [(item.id, item.label, reason(item)) for item in items] == expected
    assert [item.id for item in load_images(f"{folder}/*")] == [name for name, _, _ in expected]


@pytest.mark.parametrize("form", ["folder", "pattern", "deep pattern", "labelled", "list"])
def test_everything_else_is_done_and_every_problem_is_listed(photos: Path, form: str) -> None:
    items = {
        "folder": lambda: load_images(photos),
        "pattern": lambda: load_images(f"{photos}/*"),
        "deep pattern": lambda: load_images(f"{photos}/**"),
        "labelled": lambda: labelled_folders(photos),
        "list": lambda: load_images(sorted(p for p in photos.rglob("*") if p.suffix or not p.is_dir())),
    }[form]()
    found = outcome(items, photos)
    if form == "list":  # what is named by hand is looked at, whatever it is
        assert "named pipe" in str(found.pop("cat/notes"))
    assert found.keys() == {*GOOD, *PROBLEMS}
    assert [name for name, why in found.items() if why is None] == GOOD
    for name, part in PROBLEMS.items():
        assert part in str(found[name]), name


def test_patterns_list_what_they_match_and_what_may_hide_more(photos: Path) -> None:
    found = outcome(load_images(f"{photos}/**/0.png"), photos)
    assert found.keys() == {"cat/0.png", "dog/0.png", "lost", "loop"}


def test_a_broken_link_is_no_class(photos: Path) -> None:
    for items in (labelled_folders(photos), load_images(photos)):
        assert {Path(item.id).name: item.label for item in items if item.label is None} == {"lost": None, "loop": None}
        assert {item.label for item in items} == {"cat", "dog", None}


@pytest.mark.parametrize("name", ["cat/pipe.png", "cat/notes", "cat/socket.png", "dog/zero.png"])
def test_named_by_hand(photos: Path, name: str) -> None:
    [item] = load_images(photos / name)
    assert "not a regular file" in str(reason(item))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.tar"])
def test_tables_and_archives_that_are_no_files(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="named pipe"):
        load_images(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"a device, not a regular file"):
        load_images([tmp_path / name])


def test_an_archive_in_a_pattern_that_is_no_file(photos: Path) -> None:
    os.mkfifo(photos / "cat" / "t.tar")
    assert "named pipe" in str(outcome(load_images(f"{photos}/cat/*"), photos)["cat/t.tar"])


# Folders without permission.


@pytest.mark.parametrize("form", ["{}", "{}/*", "{}/**", "{}/*/0.png"])
def test_locked_subfolder(photos: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    lock(photos / "cat", monkeypatch)
    found = outcome(load_images(form.format(photos)), photos)
    assert found["cat"] == "the folder cannot be listed: no permission"
    assert found["dog/0.png"] is None
    assert "cat/0.png" not in found


def test_locked_class_and_domain_folders(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(photos / "cat", monkeypatch)
    items = {Path(item.id).relative_to(photos).as_posix(): item for item in labelled_folders(photos)}
    assert items["cat"].label == "cat"
    assert "cannot be listed" in str(reason(items["cat"]))
    locked = [item for item in labelled_folders(tmp_path, domains=True) if Path(item.id) == photos / "cat"]
    assert [(item.label, item.domain) for item in locked] == [("cat", "photos")]
    lock(photos, monkeypatch)
    [item] = labelled_folders(tmp_path, domains=True)
    assert (Path(item.id), item.label, item.domain) == (photos, None, "photos")


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_locked_by_the_system() -> None:
    """As a user who really may not: the superuser's child gives up its rights."""
    with tempfile.TemporaryDirectory() as name:  # not in pytest's folder, which is private
        folder = Path(name)
        folder.chmod(0o755)
        for path in (folder / file for file in (*GOOD, "half/0.png")):
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
        (folder / "cat").chmod(0)
        (folder / "dog/0.png").chmod(0)
        (folder / "half").chmod(0o744)  # may be listed, but not entered
        found = _seen_by_nobody(folder)
    assert found == {
        "cat": "the folder cannot be listed: no permission",
        "dog/0.png": "no permission to read it",
        "dog/1.png": "",
        "half/0.png": "no permission to read it",
    }


def _seen_by_nobody(folder: Path) -> dict[str, str]:
    program = """
import os, sys
from pathlib import Path
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.source import load_images
load_rgb(ImageItem("a", Path(sys.argv[1], "dog/1.png")))  # loads what is loaded late
os.seteuid(65534)
for item in load_images(sys.argv[1]):
    try:
        load_rgb(item); print(item.id)
    except UnreadableImage as error:
        print(item.id, "|", error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" | ")[::2] for line in done.stdout.replace(f"{folder}/", "").splitlines())


# Links.


def test_links_among_folders_end(tmp_path: Path) -> None:
    """Nine folders that all link to each other have 9! ways through them."""
    folders = [tmp_path / f"{i:02}" for i in range(9)]
    for folder in folders:
        folder.mkdir()
        (folder / "a.png").touch()
    for folder in folders:
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    items = load_images(tmp_path)
    assert {Path(item.id).resolve() for item in items} >= {folder / "a.png" for folder in folders}
    refused = [item for item in items if "links led to already" in str(reason(item))]
    assert refused
    pictures = [item for item in items if item.problem is None]
    assert len(pictures) <= 9 * (1 + MOST_LINKS_TO_A_FOLDER)


def test_a_link_out_of_the_folder_and_back(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    (tmp_path / "other" / "b.png").touch()
    (tmp_path / "photos" / "out").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "photos")
    found = [Path(item.id).relative_to(tmp_path / "photos").as_posix() for item in load_images(tmp_path / "photos")]
    assert found == ["a.png", "out/b.png"]


def test_patterns_do_not_go_in_circles(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
        (tmp_path / name / "up").symlink_to("..")
        (tmp_path / name / "up2").symlink_to("..")
    found = [Path(item.id).relative_to(tmp_path).as_posix() for item in load_images(f"{tmp_path}/**/*.png")]
    assert found == ["a/x.png", "b/x.png", "c/x.png"]


def test_deeper_than_python_recurses(tmp_path: Path) -> None:
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1050):
            Path("d").mkdir()
            os.chdir("d")
        Path("a.png").touch()
        os.chdir(tmp_path)
        [item] = load_images("d")
        assert item.id.endswith("d/d/a.png")
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


# Names.


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a\0*", "[\ud800]*", "a\0b/*.png", "\0", "photos/\0/../x.tar"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError, match=r"exist|No image"):
        load_images(name)
    if not name.endswith(".tar"):
        assert all(reason(item) for item in load_images([name]))


# Any pattern against Python's own glob, in a tree without links or locks.

part = st.sampled_from(["*", "**", "?", "a*", "*.png", "[ab]", "a", "b", ".h", ".*", "x.png", "[!a]*"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plain")
    for name in ("a/x.png", "a/b/x.png", "a/b/y.png", "b/a/a/x.png", ".h/x.png", "a/.x.png", "x.png", "ab/n.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@settings(max_examples=examples(200))
@given(st.lists(part, min_size=1, max_size=4))
def test_patterns_match_what_globs_match(plain: Path, parts: list[str]) -> None:
    import glob

    from deltaenergy.data.formats.folder import _fits, may_lead_to
    from deltaenergy.data.formats.walk import EntryKind, tree

    # Python's glob lets x.png/** match the file x.png, and nowhere/** what is not there. A shell does not, nor do we.
    assume(("x.png", "**") not in itertools.pairwise(parts))
    pattern = plain.joinpath(*parts)
    found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207
    expected = {str(Path(name)) for name in found if Path(name).is_file()}
    for enter in (lambda folder: True, lambda folder: may_lead_to(folder, parts)):
        files = [entry for entry in tree(plain, hidden=True, enter=enter) if entry.kind is not EntryKind.FOLDER]
        assert {str(entry.path) for entry in files if _fits(entry.parts, parts, itself=True)} == expected
