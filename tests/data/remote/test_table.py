"""Tables at addresses, and tables of addresses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaenergy.data.decode import open_image
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.table import table_file_images
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.data.remote.blocks import BlockCache, use_cache
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.source import load_images
from tests.clouds import S3Bucket as Bucket
from tests.data.archives import picture_bytes
from tests.servers import Answer, FaultyServer

PICTURE = picture_bytes("PNG")
ROWS = [("cat/1.png", "cat"), ("s3://elsewhere/2.png", "dog"), ("https://host/3", None)]


def message(images: object) -> str:
    with pytest.raises(InputError) as caught:
        load_images(images)
    return str(caught.value)


def parquet(columns: dict[str, list[object]]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=2)
    return stream.getvalue()


def table_bytes(ending: str, rows: list[tuple[str, str | None]]) -> bytes:
    if ending == "parquet":
        return parquet({"path": [path for path, _ in rows], "label": [label for _, label in rows]})
    if ending == "jsonl":
        return "\n".join(json.dumps({"path": path, "label": label}) for path, label in rows).encode()
    mark = "\t" if ending == "tsv" else ","
    return "\n".join(
        mark.join(cells) for cells in [("path", "label"), *((path, label or "") for path, label in rows)]
    ).encode()


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("part_bytes", [16, 1 << 20])
def test_a_table_on_a_store(bucket: Bucket, ending: str, part_bytes: int) -> None:
    """Names in it count from its own folder. However small the parts are that are asked for, it is the same table."""
    bucket.put({f"set/table.{ending}": table_bytes(ending, ROWS), "set/cat/1.png": PICTURE})
    urls = [f"{bucket.url}/set/cat/1.png", "s3://elsewhere/2.png", "https://host/3"]
    table = RemoteFile(f"{bucket.url}/set/table.{ending}")
    use_cache(BlockCache(block_bytes=part_bytes))
    found = list(table_file_images(table))
    assert found == load_images(table.url)
    assert found == [ImageItem(url, RemoteFile(url), label) for url, label in zip(urls, ["cat", "dog", None])]
    np.testing.assert_array_equal(np.asarray(load_rgb(found[0])), np.asarray(open_image(PICTURE)))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_on_disk_may_hold_addresses(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"t.{ending}").write_bytes(table_bytes(ending, ROWS))
    found = load_images(tmp_path / f"t.{ending}")
    assert found[0].path == tmp_path / "cat/1.png"
    assert found[1] == ImageItem(ROWS[1][0], RemoteFile(ROWS[1][0]), "dog")


def test_a_table_on_a_web_server(web: FaultyServer) -> None:
    url = web.says("/set/t.csv", Answer(503), Answer(body=table_bytes("csv", ROWS)))
    assert [item.id for item in load_images(url)] == [f"{web.url}/set/cat/1.png", *(path for path, _ in ROWS[1:])]


def test_what_is_wrong_with_a_table_is_said_with_its_address(bucket: Bucket, web: FaultyServer) -> None:
    bucket.put({"t.csv": b"name\na.png", "bad.jsonl": b"{"})
    bucket.put({"empty.csv": b"path", "no.parquet": b"PAR1"})
    assert "no column with the images' paths" in message(f"{bucket.url}/t.csv")
    assert "line 1 is not JSON" in message(f"{bucket.url}/bad.jsonl")
    assert "has no rows" in message(f"{bucket.url}/empty.csv")
    assert "cannot be read" in message(f"{bucket.url}/no.parquet")
    assert "nothing is at this URL" in message(f"{bucket.url}/missing.csv")
    web.stop()
    with pytest.raises(UnreachableError):
        load_images(f"{web.url}/t.csv")


def test_a_secret_in_a_table_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path\na.png\ns3://me:hunter2@bucket/a.png\n", encoding="utf-8")
    first, second = load_images(tmp_path / "t.csv")
    assert first.problem is None and second.id == "row 2"
    assert "password" in str(second.problem) and "hunter2" not in str(second)
