"""Whether a place can be written is known before the work, and finished work is never lost."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaenergy.errors import OS_REMEDIES, ArtifactError, InputError, OutputError
from deltaenergy.files import check_writable, keeping_result, write_text
from tests.faults.harness import Fault, contents, fail


@pytest.fixture
def nobody() -> Iterator[None]:
    """Run as a user without rights where the tests run as root, who may do everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user may come to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["new", "a/b/c", "there", "./there", "Ähre"])
def test_places_that_can_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").write_text("old")
    before = contents(tmp_path)
    check_writable(tmp_path / name)
    check_writable(tmp_path / f"{name}-folder" / "x", folder=True)
    check_writable(tmp_path, folder=True)
    assert contents(tmp_path) == before


def test_places_that_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    wrong: list[tuple[str, bool, str]] = [
        ("file", True, r"`out` .*file is a file\. Give a folder"),
        ("folder", False, r"folder is a folder\. Give the name of a file"),
        ("file/below", False, r"file is a file, not a folder\. Choose"),
        ("file/below/far", True, r"file is a file, not a folder\. Choose"),
        ("pipe", False, "not an ordinary file"),
        ("pipe", True, "is a file"),
        ("loop/x", False, "loop"),
        ("n" * 300, False, r"too long.* shorter"),
        ("a\0b", False, "not a file name"),
    ]
    for name, folder, message in wrong:
        with pytest.raises(InputError, match=message):
            check_writable(f"{tmp_path}/{name}", folder=folder, argument="out")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_rights_is_said_with_the_remedy(public: Path, nobody: None) -> None:
    reason, remedy = OS_REMEDIES[errno.EACCES]
    with pytest.raises(InputError, match=rf"{reason} \({public}\)\. {remedy}"):
        check_writable(public / "table.csv")
    with pytest.raises(InputError, match=r"a/b does not exist.*Choose"):
        check_writable(public / "a" / "b", folder=True)


def test_a_protected_file_is_left_alone(public: Path) -> None:
    if os.geteuid() == 0:
        os.chown(public, 65534, 65534)
    (public / "mine.csv").write_text("old")
    (public / "mine.csv").chmod(0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with pytest.raises(InputError, match="write-protected"):
            check_writable(public / "mine.csv")
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(("code", "words"), [(errno.EROFS, "read-only"), (errno.ENOSPC, "no space is left")])
def test_the_system_s_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(InputError, match=words):
        check_writable(tmp_path / "x")


def kept_in(error: pytest.ExceptionInfo[OutputError]) -> Path:
    match = re.search(r"It is kept in (.*): move it", str(error.value))
    assert match is not None, str(error.value)
    return Path(match[1])


def test_a_result_is_kept_beside_its_place(tmp_path: Path) -> None:
    (tmp_path / "table.csv").mkdir()
    (tmp_path / "table.kept-1.csv").write_text("an earlier one")
    with pytest.raises(OutputError, match=r"table\.csv: .*folder") as caught:
        keeping_result(tmp_path / "table.csv", lambda path: write_text(path, "rows"), what="The table")
    assert kept_in(caught) == tmp_path / "table.kept-2.csv"
    assert kept_in(caught).read_text() == "rows"
    assert (tmp_path / "table.kept-1.csv").read_text() == "an earlier one"


def test_a_result_is_kept_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "gone").write_text("a file where the folder was")
    with pytest.raises(OutputError) as caught:
        keeping_result(tmp_path / "gone" / "table.csv", lambda path: write_text(path, "rows"))
    assert kept_in(caught).parent.parent == tmp_path / "tmp"
    assert kept_in(caught).read_text() == "rows" and kept_in(caught).name == "table.csv"


def test_a_folder_is_kept_as_a_whole(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        if folder.name == "detector" and not folder.parent.name.endswith(".part"):
            raise ArtifactError("in the way")
        write_text(folder / "a.json", "a")
        write_text(folder / "b.json", "b")

    with pytest.raises(OutputError, match="in the way") as caught:
        keeping_result(tmp_path / "detector", write)
    assert contents(kept_in(caught)) == {"a.json": b"a", "b.json": b"b"}
    assert [path.name for path in tmp_path.iterdir()] == ["detector.kept-1"]


def test_with_no_place_at_all_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    outcome = fail(
        lambda: keeping_result(tmp_path / "table.csv", lambda path: write_text(path, "rows")),
        tmp_path,
        Fault(0, "ENOSPC"),
    )
    assert "kept nowhere else" in outcome.message
    assert contents(tmp_path) == {"tmp": None}
    with pytest.raises(OutputError, match="kept nowhere else"):
        keeping_result("/dev/null/x", _full)


def _full(path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_are_not_hidden(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        raise TypeError("a mistake of ours")

    with pytest.raises(TypeError):
        keeping_result(tmp_path / "x", broken)
