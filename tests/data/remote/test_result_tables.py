"""Tables of verdicts at URLs: the bytes of a table on disk, and nothing lost if they cannot be written there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaenergy.detector.verdict_files import check_table, write_table
from deltaenergy.errors import InputError, OutputError, UnreachableError
from deltaenergy.files import check_writable
from tests.clouds import S3Bucket as Bucket
from tests.clouds import store_error

COLUMNS = ["path", "score"]
PARTS = [[{"path": f"{i}.png", "score": i / 8}, {"path": f"{i}.jpg", "score": -i / 8}] for i in range(3)]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "xlsx"])
def test_the_same_bytes_as_on_disk(bucket: Bucket, tmp_path: Path, temporary: Path, ending: str) -> None:
    url, file = f"{bucket.url}/out/v.{ending}", tmp_path / f"v.{ending}"
    bucket.put({f"out/v.{ending}": b"old"})
    check_table(url)
    assert bucket.get(f"out/v.{ending}") == b"old"
    written = write_table(url.replace(bucket.kind, bucket.kind.upper(), 1), PARTS, COLUMNS)
    assert written == write_table(file, PARTS, COLUMNS) == 6
    assert bucket.get(f"out/v.{ending}") == file.read_bytes()
    assert bucket.list() == [f"out/v.{ending}"] and list(temporary.iterdir()) == []


def test_the_old_table_stays_until_the_new_one_is_whole(bucket: Bucket, temporary: Path) -> None:
    bucket.put({"v.csv": b"old"})

    def broken() -> Iterator[list[dict[str, Any]]]:
        yield PARTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        write_table(f"{bucket.url}/v.csv", broken(), COLUMNS)
    assert bucket.get("v.csv") == b"old"
    (kept,) = temporary.iterdir()
    assert str(kept) in caught.value.__notes__[0]
    assert len(kept.read_text().splitlines()) == 3


def test_a_table_that_cannot_be_uploaded_is_kept(bucket: Bucket, tmp_path: Path, temporary: Path) -> None:
    bucket.front.always = store_error(403, "AuthorizationPermissionMismatch")
    with pytest.raises(OutputError, match=r"v\.csv") as caught:
        write_table(f"{bucket.url}/v.csv", PARTS, COLUMNS)
    (kept,) = temporary.iterdir()
    assert str(kept) in str(caught.value)
    write_table(tmp_path / "v.csv", PARTS, COLUMNS)
    assert kept.read_bytes() == (tmp_path / "v.csv").read_bytes()


def test_what_is_wrong_is_said_before_the_work(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="web server"):
        check_table("https://host/v.csv", "out")
    with pytest.raises(InputError, match=r"`out`.*'\.csw'"):
        check_table(f"{bucket.url}/v.csw", "out")
    with pytest.raises(InputError, match="no bucket"):
        check_table("s3://v.csv", "out")
    with pytest.raises(UnreachableError, match="no such bucket"):
        check_table(f"{bucket.url}-other/v.csv", "out")
    for given in (f"{bucket.url}/fiftyone", Path(f"{bucket.url}/fiftyone")):
        with pytest.raises(InputError, match=r"`out`.*URL"):
            check_table(given, "out")
    for given in (f"{bucket.url}/page.html", Path("s3://bucket/page.html"), "file:///tmp/page.html"):
        with pytest.raises(InputError, match=r"`report`.*URL"):
            check_writable(given, argument="report")
    assert list(tmp_path.iterdir()) == []
