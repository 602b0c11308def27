"""Tables on disk: written as rows come, named when they are whole, and kept in part when a run stops."""

from __future__ import annotations

import csv
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deltaenergy import Model, build_store
from deltaenergy.cli.shell.exits import InterruptedRun
from deltaenergy.detector.verdict_files import ROW_GROUP, stream_rows
from deltaenergy.errors import InputError, OutputError
from tests.cli.runner import Runner

COLUMNS = ["path", "score", "p_value"]
ENDINGS = ["csv", "jsonl", "parquet"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [{**row, "score": float(row["score"]), "p_value": None} for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def some(start: int, count: int) -> list[dict[str, Any]]:
    return [{"path": f"bild ü {i}.png", "score": i / 8, "p_value": None} for i in range(start, start + count)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_parts_make_one_table(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "new folder" / f"table.{ending}"
    assert stream_rows(file, [some(0, 3), [], some(3, 2)], COLUMNS) == 5
    assert rows_of(file) == some(0, 5)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert stream_rows(file, [], COLUMNS) == 0
    assert rows_of(file) == []


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_rows_are_on_disk_while_others_are_still_being_found(tmp_path: Path, ending: str) -> None:
    seen: list[int] = []

    def parts() -> Iterator[list[dict[str, Any]]]:
        for start in range(0, 6000, 2000):
            yield some(start, 2000)
            (growing,) = (path for path in tmp_path.rglob(f"*.{ending}"))
            seen.append(growing.stat().st_size)

    stream_rows(tmp_path / f"table.{ending}", parts(), COLUMNS)
    assert 10_000 < seen[0] < seen[1] < seen[2]


def test_a_parquet_table_has_groups_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    parts = (some(start, 1000) for start in range(0, 20_000, 1000))
    assert stream_rows(file, parts, COLUMNS) == 20_000
    written = pq.ParquetFile(file)
    assert written.num_row_groups == 3 and written.metadata.row_group(0).num_rows >= ROW_GROUP
    assert rows_of(file) == some(0, 20_000)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (KeyboardInterrupt(), InterruptedRun),
        (OSError(errno.ENOSPC, "No space left on device"), OutputError),
        (InputError("the fourth image is no good"), InputError),
    ],
)
def test_what_was_written_is_kept_when_a_run_stops(
    tmp_path: Path, ending: str, stop: BaseException, expected: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's files stay: an older table of that name, and one that has the first name we would take."""
    file, taken = tmp_path / f"table.{ending}", tmp_path / f"table.partial-1.{ending}"
    file.write_bytes(b"older")
    taken.write_bytes(b"the user's own")

    def parts() -> Iterator[list[dict[str, Any]]]:
        yield some(0, 3)
        raise stop

    with pytest.raises(expected) as found:
        stream_rows(file, parts(), COLUMNS)
    kept = tmp_path / f"table.partial-2.{ending}"
    assert rows_of(kept) == some(0, 3)
    assert f"The first 3 row(s) are in {kept}" in str(found.value) + " ".join(capsys.readouterr().err.split("\n"))
    assert file.read_bytes() == b"older" and taken.read_bytes() == b"the user's own"
    assert {path.name for path in tmp_path.iterdir()} == {file.name, taken.name, kept.name}


def test_a_parquet_file_without_its_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a file may not grow any more: nobody can read what is there."""

    def too_large(_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(pq.ParquetWriter, "close", too_large)
    with pytest.raises(OutputError, match=r"table\.parquet") as found:
        stream_rows(tmp_path / "table.parquet", iter([some(0, 3)]), COLUMNS)
    assert "row(s) are in" not in str(found.value) and list(tmp_path.iterdir()) == []


def test_nothing_is_kept_of_a_run_without_a_row(tmp_path: Path) -> None:
    def parts() -> Iterator[list[dict[str, Any]]]:
        raise KeyboardInterrupt
        yield []

    with pytest.raises(InterruptedRun, match="No row"):
        stream_rows(tmp_path / "table.csv", parts(), COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_score_says_where_its_rows_are(
    command: Runner, tiny_clip_folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaenergy.models.towers.clip import ClipModel

    original, calls = ClipModel.image_features, []

    def interrupted(self: ClipModel, pixels: Any) -> Any:
        calls.append(len(pixels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, pixels)

    monkeypatch.setattr(ClipModel, "image_features", interrupted)
    file = tmp_path / "table.csv"
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    result = command("score", photos, *base, "--batch-size", 2, "--out", file)
    assert result.code == 130
    assert "The first 4 row(s) are in" in result.err and not file.exists()
    assert len(rows_of(tmp_path / "table.partial-1.csv")) == 4


def test_a_store_gives_the_table_that_its_images_give(
    command: Runner, tiny_clip: Model, tiny_clip_folder: Path, photos: Path, tmp_path: Path
) -> None:
    build_store(tiny_clip, photos, tmp_path / "photos.store", shard_size=3)
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat", "--id", photos]
    for source, name in ((photos, "images.jsonl"), (tmp_path / "photos.store", "store.jsonl")):
        assert command("score", source, *base, "--out", tmp_path / name).code == 0
    images, stored = (rows_of(tmp_path / name) for name in ("images.jsonl", "store.jsonl"))
    assert [row["path"] for row in stored] == [row["path"] for row in images]
    assert [row["score"] for row in stored] == pytest.approx([row["score"] for row in images], rel=1e-5)
    assert [row["is_ood"] for row in stored] == [row["is_ood"] for row in images]
