"""The tutorials are all there, and that of sorting does what it says, command by command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from deltaenergy.cli.main import run
from tests.docs.test_code_blocks import ROOT, commands_of
from tests.labelled_pictures import write_pictures


def test_the_tutorials_stand_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (listed,) = [entry["Tutorials"] for entry in nav if "Tutorials" in entry]
    assert set(listed) == {f"tutorials/{path.name}" for path in (ROOT / "docs" / "tutorials").glob("*.md")}
    for name in listed:
        assert commands_of(ROOT / "docs" / name), f"{name} has nothing to type"


def test_sort_a_photo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "good", 24)
    write_pictures(tmp_path / "photos", 3, seed=1)
    photos = {path: path.read_bytes() for path in (tmp_path / "photos").rglob("*.png")}
    done = []
    for line in commands_of(ROOT / "docs" / "tutorials" / "sort-a-photo-folder.md"):
        if line.startswith("deltaenergy choose"):
            continue
        with pytest.raises(SystemExit) as ended:
            run(shlex.split(line, comments=True)[1:])
        assert ended.value.code in (0, None), line
        done.append(line)
        copies = sorted(path.read_bytes() for path in Path("sorted").rglob("*.png"))
        if line.endswith("--into sorted/"):
            assert copies == sorted(photos.values()) and Path("sorted/undo-1.jsonl").is_file()
        else:
            assert not copies
    assert len(done) == 7
    assert {path: path.read_bytes() for path in photos} == photos
    assert Path("page.html").is_file() and len(Path("verdicts.csv").read_text().splitlines()) == 10
    assert Path("state.json").is_file()
