"""Every tutorial has commands, and those of the sorting tutorial do what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from deltaenergy.cli.main import run
from tests.docs.test_code_blocks import ROOT, commands_of
from tests.labelled_pictures import write_pictures


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_has_commands(page: Path) -> None:
    assert commands_of(page)


def test_sort_a_photo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "good", 24)
    write_pictures(tmp_path / "photos", 3, seed=1)
    photos = {path: path.read_bytes() for path in (tmp_path / "photos").rglob("*.png")}
    done = []
    for line in commands_of(ROOT / "docs" / "tutorials" / "sort.md"):
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
