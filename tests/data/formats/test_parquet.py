"""Pictures in Parquet files: every way to write them, read once and in bounded memory, and clear words for damage."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.file import LocalFile
from deltaenergy.data.formats.parquet import ColumnReader, ParquetCell, close_readers
from deltaenergy.data.items import ImageItem, change_stamp, hash_bytes, hash_content, load_rgb
from deltaenergy.errors import InputError
from deltaenergy.source import load_images
from tests.data.archives import picture_bytes

PICTURES = [picture_bytes("PNG", seed) for seed in range(7)]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    close_readers()


def message(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


def reason(item: ImageItem) -> str:
    with pytest.raises(UnreadableImage) as caught:
        load_rgb(item)
    return str(caught.value)


def write(columns: dict[str, Any], name: str = "t.parquet", **options: Any) -> None:
    pq.write_table(pa.table(columns), name, **options)


def contents(items: list[ImageItem]) -> list[str | None]:
    return [hash_content(item)[0] for item in items]


RECORDS = [{"bytes": data, "path": "a.png"} for data in PICTURES]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(PICTURES),
        pa.array(PICTURES, pa.large_binary()),
        pa.array(PICTURES, pa.binary_view()),
        pa.array(PICTURES).dictionary_encode(),
        pa.array(RECORDS, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        pa.array(RECORDS, pa.struct({"path": pa.large_string(), "bytes": pa.large_binary()})),
    ],
    ids=["binary", "large", "view", "dictionary", "record", "other record"],
)
@pytest.mark.parametrize("group", [3, 1000])
def test_every_way_to_write_pictures(column: pa.Array, group: int) -> None:
    write({"image": column, "label": list("abcdefg"), "Domain": ["x"] * 7}, row_group_size=group)
    items = load_images("t.parquet")
    assert [item.id for item in items] == [f"t.parquet#{row}" for row in range(7)]
    assert [(item.label, item.domain) for item in items] == [(label, "x") for label in "abcdefg"]
    assert contents(items) == [hash_bytes(data) for data in PICTURES]
    np.testing.assert_array_equal(np.asarray(load_rgb(items[4])), np.asarray(open_image(PICTURES[4])))


@pytest.mark.parametrize("name", ["image", "IMG", "picture", "jpg", "png", "bytes"])
def test_names_of_the_column(name: str) -> None:
    write({"other": [1] * 7, name: PICTURES})
    assert contents(load_images("t.parquet")) == [hash_bytes(data) for data in PICTURES]


def test_ids_come_from_a_column_of_paths_or_ids() -> None:
    write({"image": PICTURES, "file_name": ["b.png", None, "b.png", "", "d.png", "e.png", "f.png"]})
    ids = [item.id for item in load_images("t.parquet")]
    assert ids == ["b.png", "t.parquet#1", "b.png (2)", "t.parquet#3", "d.png", "e.png", "f.png"]
    write({"image": PICTURES, "id": range(10, 17)})
    assert [item.id for item in load_images("t.parquet")] == [str(number) for number in range(10, 17)]


def test_numbers_of_equal_length_sort_as_the_rows_do() -> None:
    write({"image": PICTURES * 2})
    ids = [item.id for item in load_images("t.parquet")]
    assert ids[2] == "t.parquet#02"
    assert ids == sorted(ids)


def test_a_size_called_bytes_is_no_picture() -> None:
    """Tables of crawled images have such a column."""
    write({"path": ["a.png"], "bytes": [123]})
    assert [item.path for item in load_images("t.parquet")] == [Path("a.png")]


def test_class_names_and_image_columns_that_the_hub_wrote() -> None:
    features = {
        "scan": {"_type": "Image"},
        "sound": {"_type": "Audio"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    columns = {"sound": RECORDS[:4], "scan": RECORDS[:4], "label": [1, 0, -1, None]}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, "t.parquet")
    items = load_images("t.parquet")
    assert [item.label for item in items] == ["dog", "cat", None, None]
    assert isinstance(items[0].source, ParquetCell)
    assert items[0].source.column == "scan"
    for metadata in ("no JSON", "[1]", '{"info": 3}', '{"info": {"features": {"label": {"names": [1, 2]}}}}'):
        pq.write_table(
            pa.table({"image": PICTURES[:1], "label": [1]}).replace_schema_metadata({"huggingface": metadata}),
            "u.parquet",
        )
        assert [item.label for item in load_images("u.parquet")] == ["1"]


def test_a_file_of_the_hubs_own_library() -> None:
    datasets = pytest.importorskip("datasets")
    pictures = [Image.new("RGB", (8, 6), (shade, 0, 0)) for shade in (0, 90, 180)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"image": pictures, "label": [1, 0, 1]}, features=features)
    data.to_parquet("train-00000-of-00001.parquet")
    items = load_images("train-00000-of-00001.parquet")
    assert [item.label for item in items] == ["dog", "cat", "dog"]
    assert [load_rgb(item).getpixel((0, 0)) for item in items] == [(0, 0, 0), (90, 0, 0), (180, 0, 0)]


def test_rows_without_a_picture_and_records_that_name_a_file() -> None:
    Path("sub").mkdir()
    Path("sub/real.png").write_bytes(PICTURES[0])
    records = [
        None,
        {"bytes": None, "path": None},
        {"bytes": None, "path": "real.png"},
        {"bytes": None, "path": "x.png"},
    ]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    write({"image": pa.array([*records, {"bytes": b"", "path": None}], kind)}, "sub/t.parquet")
    items = load_images("sub/t.parquet")
    assert reason(items[0]) == reason(items[1]) == "the table has no image in this row"
    assert contents(items)[2] == hash_bytes(PICTURES[0])
    assert reason(items[3]) == "the file does not exist"
    assert reason(items[4]) == "the file is empty"
    write({"image": pa.array([None, PICTURES[1]], pa.binary())})
    assert contents(load_images("t.parquet")) == [None, hash_bytes(PICTURES[1])]


def test_no_rows() -> None:
    write({"image": pa.array([], pa.binary())})
    assert "no rows" in message(lambda: load_images("t.parquet"))


def test_parts_in_a_folder_or_by_a_pattern() -> None:
    Path("data").mkdir()
    for part in (1, 0):
        write({"image": PICTURES[part::2]}, f"data/train-{part:05}-of-00002.parquet")
    expected = [hash_bytes(data) for data in PICTURES[0::2] + PICTURES[1::2]]
    forms = ("data", "data/*.parquet", "data/train-{00000..00001}-of-00002.parquet", "data/train-0000{0,1}-*.parquet")
    for form in forms:
        items = load_images(form)
        assert items[0].id == "data/train-00000-of-00002.parquet#0"
        assert contents(items) == expected
    assert "train-00002-of-00002.parquet' does not exist" in message(
        lambda: load_images("data/train-{00000..00002}-of-00002.parquet")
    )
    # Beside pictures a table is no part; nor does a pattern mean it that does not name its ending.
    Path("data/a.png").write_bytes(PICTURES[0])
    assert [item.id for item in load_images("data")] == ["data/a.png"]
    assert [item.id for item in load_images("data/*")] == ["data/a.png"]
    Path("data/a.png").unlink()
    os.mkfifo("data/z.parquet")
    Path("data/lost").symlink_to("nowhere")
    items = load_images("data")
    assert contents(items[1:-1]) == expected
    assert "named pipe" in reason(items[-1])
    assert items[0].problem


# Reading.


@pytest.mark.parametrize("group", [7, 100, 1000])
def test_in_order_each_row_is_decoded_once(group: int) -> None:
    rng = np.random.default_rng(0)
    cells = [rng.bytes(int(size)) for size in rng.integers(0, 2000, 1000)]
    write({"image": cells}, row_group_size=group)

    def opened() -> ColumnReader:
        return ColumnReader(LocalFile(Path("t.parquet")), "image", batch_bytes=20_000, kept_bytes=100_000)

    reader = opened()
    assert [reader.cell(row) for row in range(1000)] == cells
    assert reader.decoded == 1000
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(reader.cell, range(1000))) == cells
    # One that goes over the same rows again, some way behind, has a place of its own.
    reader = opened()
    for start in range(0, 1000, 200):
        for _ in range(2):
            assert [reader.cell(row) for row in range(start, start + 200)] == cells[start : start + 200]
    assert reader.decoded <= 2100  # a group that was finished is begun again for its last rows


def test_in_any_order() -> None:
    rng = np.random.default_rng(1)
    cells = [rng.bytes(int(size)) for size in rng.integers(0, 300, 500)]
    write({"image": cells}, row_group_size=90)
    items = load_images("t.parquet")
    for row in rng.permutation(500):
        with items[row].source.open() as file:  # type: ignore[union-attr]
            assert file.read() == cells[row]


def test_memory_is_bounded() -> None:
    """A row group of 32 MB is never held whole, whatever is read of it."""
    rng = np.random.default_rng(0)
    options = {"compression": "none", "use_dictionary": False, "write_batch_size": 8}  # small pages
    write({"image": [rng.bytes(64_000) for _ in range(500)]}, **options)
    assert pq.ParquetFile("t.parquet").num_row_groups == 1
    reader = ColumnReader(LocalFile(Path("t.parquet")), "image", batch_bytes=1 << 20, kept_bytes=4 << 20)
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    for row in range(500):
        assert len(reader.cell(row)) == 64_000
        most = max(most, pool.bytes_allocated() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20
    assert python < 16 << 20


def test_a_file_that_changes_after_it_was_listed() -> None:
    write({"image": PICTURES})
    items = load_images("t.parquet")
    stamps = [change_stamp(item) for item in items]
    assert len(set(stamps)) == 7
    assert hash_content(items[6])[0] == hash_bytes(PICTURES[6])
    write({"image": [b"other", *PICTURES[1:3]]})
    assert contents(items)[0] == hash_bytes(b"other")
    assert reason(items[6]) == "the table has 3 rows: it changed after it was listed"
    assert change_stamp(load_images("t.parquet")[1]) != stamps[1]
    Path("t.parquet").write_bytes(b"PAR1")
    assert "its table cannot be read" in reason(items[0])
    Path("t.parquet").unlink()
    assert reason(items[0]) == "its table cannot be read: the file does not exist"
    os.mkfifo("t.parquet")
    assert "a named pipe" in reason(items[0])


def test_truncated_files_are_refused_whole() -> None:
    write({"image": PICTURES})
    Path("t.parquet").write_bytes(Path("t.parquet").read_bytes()[:-20])
    assert "'t.parquet' cannot be read" in message(lambda: load_images("t.parquet"))


def test_a_damaged_page_costs_its_rows_and_those_after_in_its_group() -> None:
    rng = np.random.default_rng(0)
    cells = [rng.bytes(1000) for _ in range(300)]
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 10_000, "write_batch_size": 10}
    write({"image": cells}, row_group_size=100, **options)
    chunk = pq.ParquetFile("t.parquet").metadata.row_group(1).column(0)
    data = bytearray(Path("t.parquet").read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 25_000] = b"\xff" * 25_000
    Path("t.parquet").write_bytes(data)
    reader = ColumnReader(LocalFile(Path("t.parquet")), "image", batch_bytes=10_000)
    found: list[bytes | None] = []
    for row in range(300):
        try:
            found.append(reader.cell(row))
        except UnreadableImage:
            found.append(None)
    assert reader.decoded < 300, "the way to the damage is gone once, not for every row behind it"
    assert found[:140] == cells[:140]
    assert found[160:200] == [None] * 40
    assert found[200:] == cells[200:]
    items = load_images("t.parquet")
    assert contents(items)[200:] == [hash_bytes(cell) for cell in cells[200:]]
    assert "the table is damaged from row" in reason(items[190])
    assert "it ends there" not in reason(items[190]), "what went wrong first is said of all"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_bytes_are(seed: int) -> None:
    """The file is refused by name, or each picture is read or refused with a reason."""
    rng = np.random.default_rng(seed)
    write({"image": PICTURES, "label": list("abcdefg")}, row_group_size=3)
    data = bytearray(Path("t.parquet").read_bytes())
    for _ in range(int(rng.integers(1, 8))):
        data[int(rng.integers(0, len(data)))] ^= int(rng.integers(1, 256))
    Path("t.parquet").write_bytes(data)
    try:
        items = load_images("t.parquet")
    except InputError as error:
        assert "t.parquet" in str(error)
    else:
        for item in items[:20]:
            content, error_text = hash_content(item)
            assert (content is None) != (error_text is None)


def test_pictures_in_tables_in_memory() -> None:
    table = pa.table({"image": RECORDS, "label": list("abcdefg"), "key": [f"k{row}" for row in range(7)]})
    for form in (table, table.to_pandas() if pytest.importorskip("pandas") else table):
        items = load_images(form)
        assert [(item.id, item.label) for item in items] == [(f"k{row}", "abcdefg"[row]) for row in range(7)]
        assert contents(items) == [hash_bytes(data) for data in PICTURES]
    items = load_images(pa.table({"jpg": [None, *PICTURES]}))
    assert [item.id for item in items][:2] == ["row 1", "row 2"]
    assert reason(items[0]) == "the table has no image in this row"
    assert contents(items[1:]) == [hash_bytes(data) for data in PICTURES]
