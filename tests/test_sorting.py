"""Sorting files by verdict: where they go, that nothing is overwritten or lost, and that all of it can be undone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy import sorting
from deltaenergy.errors import ArtifactError, InputError, OutputError
from deltaenergy.sorting import (
    LONGEST_FOLDER,
    How,
    JudgedFile,
    plan_sorting,
    refuse_inside,
    safe_folder,
    sort_files,
    undo,
)


@pytest.fixture
def inbox(tmp_path: Path) -> list[JudgedFile]:
    """Two cats of the same file name, a dog and a stranger."""
    files = {"a/1.jpg": ("cat", False), "b/1.jpg": ("cat", False), "a/2.jpg": ("dog", False), "a/3.jpg": ("dog", True)}
    entries = []
    for name, (label, is_ood) in files.items():
        path = tmp_path / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"picture {name}")
        os.utime(path, ns=(10**18, 10**18 + 123_456_789))
        entries.append(JudgedFile(path, label, is_ood))
    return entries


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("undo-")
    }


SORTED = {
    "known/cat/1.jpg": "picture a/1.jpg",
    "known/cat/1 (2).jpg": "picture b/1.jpg",
    "known/dog/2.jpg": "picture a/2.jpg",
    "none of these/3.jpg": "picture a/3.jpg",
}


@pytest.mark.parametrize("how", How)
def test_files_lie_by_verdict_and_class_and_undo_leaves_everything_as_it_was(
    how: How, inbox: list[JudgedFile], tmp_path: Path
) -> None:
    before = content(tmp_path)
    done = sort_files(plan_sorting(inbox, tmp_path / "new" / "sorted", how))
    assert done.done == 4 and done.skipped == []
    assert content(tmp_path / "new" / "sorted") == SORTED
    assert (content(tmp_path / "inbox") == {}) is (how is How.MOVE)
    assert (tmp_path / "new/sorted/known/dog/2.jpg").is_symlink() is (how is How.LINK)
    assert (tmp_path / "new/sorted/known/dog/2.jpg").stat().st_mtime_ns == 10**18 + 123_456_789
    assert done.undo is not None
    dry = undo(done.undo, dry_run=True)
    assert dry.done == 4 and content(tmp_path / "new" / "sorted") == SORTED
    assert undo(done.undo).done == 4
    assert content(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inbox"], "folders that were made are gone"


@pytest.mark.parametrize("how", How)
def test_nothing_is_overwritten(how: How, inbox: list[JudgedFile], tmp_path: Path) -> None:
    mine = tmp_path / "sorted" / "known" / "cat" / "1.JPG"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = sort_files(plan_sorting(inbox, tmp_path / "sorted", how))
    assert mine.read_text() == "mine"
    assert (mine.parent / "1 (2).jpg").read_text() == "picture a/1.jpg"
    assert (mine.parent / "1 (3).jpg").read_text() == "picture b/1.jpg"
    assert done.undo is not None
    assert undo(done.undo).skipped == []
    assert content(tmp_path / "sorted") == {"known/cat/1.JPG": "mine"}


def test_names_that_differ_in_case_alone_are_the_same_name(tmp_path: Path) -> None:
    entries = []
    for name in ("a/straße.jpg", "b/STRASSE.jpg", "c/A.JPG", "d/a.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
        entries.append(JudgedFile(tmp_path / name, "x", True))
    plan = plan_sorting(entries, tmp_path / "sorted", How.COPY)
    assert [one.target.name for one in plan.moves] == ["straße.jpg", "STRASSE (2).jpg", "A.JPG", "a (2).jpg"]


@pytest.mark.parametrize("how", How)
def test_a_name_that_is_taken_after_the_plan_is_skipped(how: How, inbox: list[JudgedFile], tmp_path: Path) -> None:
    plan = plan_sorting(inbox, tmp_path / "sorted", how)
    late = tmp_path / "sorted" / "known" / "dog" / "2.jpg"
    late.parent.mkdir(parents=True)
    late.write_text("late")
    done = sort_files(plan)
    assert done.done == 3
    assert [(one.path.name, one.reason) for one in done.skipped] == [("2.jpg", "it already exists")]
    assert late.read_text() == "late" and inbox[2].source.read_text() == "picture a/2.jpg"


def test_a_second_run_has_an_undo_file_of_its_own(inbox: list[JudgedFile], tmp_path: Path) -> None:
    first = sort_files(plan_sorting(inbox[:2], tmp_path / "sorted", How.COPY))
    second = sort_files(plan_sorting(inbox[2:], tmp_path / "sorted", How.COPY))
    assert first.undo and second.undo and (first.undo.name, second.undo.name) == ("undo-1.jsonl", "undo-2.jsonl")
    undo(first.undo)
    assert set(content(tmp_path / "sorted")) == {"known/dog/2.jpg", "none of these/3.jpg"}


@pytest.mark.parametrize("how", How)
@pytest.mark.parametrize("after", range(4))
def test_an_interrupt_at_any_file_can_be_undone(
    how: How, after: int, inbox: list[JudgedFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(tmp_path)
    place, calls = sorting._place, iter(range(10))

    def stop(*arguments: object) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt
        place(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sorting, "_place", stop)
    with pytest.raises(KeyboardInterrupt):
        sort_files(plan_sorting(inbox, tmp_path / "sorted", how))
    assert len(content(tmp_path / "sorted")) == after
    assert undo(tmp_path / "sorted" / "undo-1.jsonl").done == after
    assert content(tmp_path) == before


def test_an_interrupt_between_the_two_halves_of_a_move_can_be_undone(
    inbox: list[JudgedFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(tmp_path)

    def stop(_: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            sort_files(plan_sorting(inbox, tmp_path / "sorted", How.MOVE))
    assert inbox[0].source.exists() and (tmp_path / "sorted/known/cat/1.jpg").exists()
    assert undo(tmp_path / "sorted" / "undo-1.jsonl").skipped == []
    assert content(tmp_path) == before


def test_a_move_to_another_disk_copies_first(
    inbox: list[JudgedFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def other_disk(source: Path, target: Path, **options: bool) -> None:
        if "inbox" in Path(source).parts or "inbox" in Path(target).parts:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", other_disk)
    before = content(tmp_path)
    done = sort_files(plan_sorting(inbox, tmp_path / "sorted", How.MOVE))
    assert content(tmp_path / "sorted") == SORTED and content(tmp_path / "inbox") == {}
    assert done.undo is not None
    undo(done.undo)
    assert content(tmp_path) == before


def test_a_full_disk_stops_and_says_how_to_undo(
    inbox: list[JudgedFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OutputError, match=r"no space.*undo-1\.jsonl"):
        sort_files(plan_sorting(inbox, tmp_path / "sorted", How.COPY))
    assert content(tmp_path / "sorted") == {}


def test_undo_leaves_what_somebody_changed(inbox: list[JudgedFile], tmp_path: Path) -> None:
    copied = sort_files(plan_sorting(inbox, tmp_path / "copies", How.COPY))
    (tmp_path / "copies/known/dog/2.jpg").write_text("edited since")
    assert copied.undo is not None
    found = undo(copied.undo)
    assert found.done == 3 and [one.reason for one in found.skipped] == ["it was changed since it was copied"]
    assert content(tmp_path / "copies") == {"known/dog/2.jpg": "edited since"} and copied.undo.exists()
    linked = sort_files(plan_sorting(inbox, tmp_path / "links", How.LINK))
    (tmp_path / "links/known/dog/2.jpg").unlink()
    (tmp_path / "links/known/dog/2.jpg").write_text("my own")
    assert linked.undo is not None
    assert len(undo(linked.undo).skipped) == 1
    assert content(tmp_path / "links") == {"known/dog/2.jpg": "my own"}
    moved = sort_files(plan_sorting(inbox, tmp_path / "moves", How.MOVE))
    inbox[0].source.write_text("a new one in the old place")
    (tmp_path / "moves/known/dog/2.jpg").unlink()
    assert moved.undo is not None
    found = undo(moved.undo)
    assert found.done == 2 and len(found.skipped) == 2
    assert inbox[0].source.read_text() == "a new one in the old place"
    assert content(tmp_path / "moves") == {"known/cat/1.jpg": "picture a/1.jpg"}


def test_a_file_is_placed_once_and_links_are_not_moved(inbox: list[JudgedFile], tmp_path: Path) -> None:
    link = tmp_path / "inbox" / "link.jpg"
    link.symlink_to(inbox[0].source)
    twice = [inbox[0], inbox[0], JudgedFile(link, "cat", False)]
    plan = plan_sorting(twice, tmp_path / "sorted", How.MOVE)
    assert len(plan.moves) == 1 and [one.path for one in plan.skipped] == [link]
    assert len(plan_sorting(twice, tmp_path / "sorted", How.COPY).moves) == 2


def test_a_file_that_is_gone_is_listed_and_the_others_are_done(inbox: list[JudgedFile], tmp_path: Path) -> None:
    inbox[2].source.unlink()
    for how in (How.COPY, How.LINK, How.MOVE):
        done = sort_files(plan_sorting(inbox, tmp_path / how.value, how))
        assert done.done == 3 and [one.reason for one in done.skipped] == ["it does not exist"]


@pytest.mark.parametrize("inside", ["photos", "photos/sorted", "photos/a/b", "link/sorted"])
def test_a_folder_inside_the_source_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    with pytest.raises(InputError, match="`into`"):
        refuse_inside(tmp_path / inside, [tmp_path / "photos"])
    refuse_inside(tmp_path / "photos-sorted", [tmp_path / "photos", tmp_path / "none.jpg"])


@given(st.lists(st.text(), min_size=1, max_size=6, unique=True))
def test_every_class_has_a_safe_folder_of_its_own(labels: list[str]) -> None:
    entries = [JudgedFile(Path("/nowhere/x.jpg").with_name(f"{i}.jpg"), label, False) for i, label in enumerate(labels)]
    plan = plan_sorting(entries, "/nowhere/sorted", How.COPY)
    folders = [one.target.parent for one in plan.moves]
    assert len({str(folder).casefold() for folder in folders}) == len(labels)
    for folder in folders:
        assert folder.parent == Path("/nowhere/sorted/known")
        name = folder.name
        assert name not in {"", ".", ".."} and not set(name) & set('/\\:*?"<>|\0\n\x1b\u202e')
        assert name == name.strip(" .") and len(name.encode()) <= LONGEST_FOLDER + 8


@pytest.mark.parametrize(
    ("label", "folder"),
    [("../../etc", "_.._etc"), ("con", "_con"), ("NUL.txt", "_NUL.txt"), (" . ", "_"), ("a\x1b[31mb", "a_[31mb")],
)
def test_hostile_class_names(label: str, folder: str) -> None:
    assert safe_folder(label) == folder


def test_long_names_are_cut_so_that_the_number_fits(tmp_path: Path) -> None:
    name = "ü" * 125 + ".jpg"
    entries = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(folder)
        entries.append(JudgedFile(tmp_path / folder / name, "x", True))
    done = sort_files(plan_sorting(entries, tmp_path / "sorted", How.COPY))
    assert done.done == 2
    names = [path.name for path in (tmp_path / "sorted" / "none of these").iterdir()]
    assert len(names) == 2 and all(len(one.encode()) <= 255 and one.endswith(".jpg") for one in names)


@pytest.mark.parametrize(
    "line",
    [
        {"from": "/a/1.jpg", "to": "../../etc/passwd"},
        {"from": "/a/1.jpg", "to": "/etc/passwd"},
        {"from": "1.jpg", "to": "known/1.jpg"},
        {"from": "/a/1.jpg", "to": "known/1.jpg", "size": "x"},
        {"from": "/a/\ud800.jpg", "to": "known/1.jpg"},
        {"from": "/a/1.jpg", "to": "known/\0.jpg"},
        {"to": "known/1.jpg"},
        [],
    ],
)
def test_an_undo_file_that_leads_elsewhere_is_refused(tmp_path: Path, line: object) -> None:
    header = {"format": sorting.FORMAT, "version": sorting.VERSION, "how": "move", "made": []}
    file = tmp_path / "undo-1.jsonl"
    file.write_text(json.dumps(header) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(ArtifactError, match="is not an undo file"):
        undo(file)
    file.write_text(json.dumps(header | {"made": ["../../elsewhere"]}) + "\n")
    with pytest.raises(ArtifactError, match="is not an undo file"):
        undo(file)


def test_what_is_no_undo_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("")
    (tmp_path / "y.jsonl").write_bytes(b"\xff\x00")
    for name in ("x.jsonl", "y.jsonl", "absent.jsonl", "."):
        with pytest.raises(ArtifactError, match=r"undo-….jsonl"):
            undo(tmp_path / name)


@pytest.mark.skipif(os.name == "nt", reason="names are bytes on POSIX only")
def test_names_that_are_no_text_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).write_text("x")
    done = sort_files(plan_sorting([JudgedFile(tmp_path / name, "x", True)], tmp_path / "sorted", How.MOVE))
    assert done.done == 1 and not (tmp_path / name).exists() and done.undo is not None
    undo(done.undo)
    assert (tmp_path / name).read_text() == "x"
