"""Streams of images: the same items as ever, any number of times, a few at a time in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from deltaenergy.data.items import ImageItem
from deltaenergy.data.streams import ImageStream, SeenHashes
from deltaenergy.errors import InputError
from deltaenergy.source import image_stream, load_images, with_unique_ids
from tests.data.archives import picture_bytes, write_tar
from tests.sampling import examples

PNG = picture_bytes("PNG")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def unique_by_hand(ids: list[str]) -> Iterator[str]:
    """The rule, name by name: one that was there before gets the next number that is free so far."""
    taken, numbers = set(), Counter[str]()
    for name in ids:
        new = name
        while new in taken:
            numbers[name] += 1
            new = f"{name} ({numbers[name] + 1})"
        taken.add(new)
        yield new


# Few letters and numbers, so that ids repeat, and numbered forms are there before and after.
IDS = st.lists(
    st.builds(
        lambda a, n: a + "".join(f" ({k})" for k in n), st.sampled_from("ab"), st.lists(st.integers(1, 4), max_size=2)
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(IDS)
def test_every_image_has_its_own_id(ids: list[str]) -> None:
    items, expected = [ImageItem(name, PNG) for name in ids], list(unique_by_hand(ids))
    stream = image_stream(items)
    assert [item.id for item in stream] == expected
    assert [item.id for item in stream] == expected  # and again
    assert [item.id for item in with_unique_ids(items)] == expected
    assert len(set(expected)) == len(ids)


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(-5, 40), max_size=12), max_size=20))
def test_a_set_of_hashes(blocks: list[list[int]]) -> None:
    seen, known = SeenHashes(recent=3), set[int]()
    for block in blocks:
        assert [number in seen for number in block] == [number in known for number in block]
        for number in block:
            seen.add(number)
        known.update(block)


# Every kind of input.


def tables(rows: int = 3000) -> None:
    names = [f"cat/{row}.png" for row in range(rows)]
    pq.write_table(pa.table({"path": names, "label": ["cat"] * rows}), "paths.parquet", row_group_size=700)
    Path("paths.csv").write_text("path,label\n" + "".join(f"{name},cat\n" for name in names))
    Path("paths.jsonl").write_text("".join(json.dumps({"file": name, "class": "cat"}) + "\n" for name in names))
    pq.write_table(pa.table({"image": [PNG] * rows}), "pictures.parquet", row_group_size=700)


def kinds() -> dict[str, Any]:
    for folder in ("photos/cat", "photos/dog", "tars", "parts"):
        Path(folder).mkdir(parents=True)
    for number in range(30):
        Path(f"photos/cat/{number}.png").write_bytes(PNG)
        Path(f"photos/dog/{number}.png").write_bytes(PNG)
    tables()
    for number in range(3):
        members = {f"{key:04}.{end}": data for key in range(50) for end, data in (("png", PNG), ("cls", b"dog"))}
        write_tar(Path(f"tars/{number:03}.tar"), members)
        pq.write_table(pa.table({"img": [PNG] * 20}), f"parts/train-{number:05}-of-00003.parquet")
    array = np.zeros((2, 8, 6, 3), np.uint8)
    return {
        "one": "photos/cat/1.png",
        "folder": "photos",
        "pattern": "photos/**/*.png",
        "csv": "paths.csv",
        "jsonl": "paths.jsonl",
        "table of paths": "paths.parquet",
        "table of pictures": "pictures.parquet",
        "archive": "tars/000.tar",
        "folder of archives": "tars",
        "pattern of archives": "tars/*.tar",
        "braces": "tars/{000..002}.tar",
        "folder of parts": "parts",
        "list": [
            "photos",
            "paths.csv",
            array,
            "photos/dog/1.png",
            "gone.png",
            Image.new("RGB", (4, 4)),
            "tars/000.tar",
        ],
        "repeats": ["paths.csv", "paths.parquet", "paths.csv"],
        "items": [ImageItem("x", PNG), ImageItem("x", PNG)],
        "array": array,
        "memory table": pa.table({"path": ["a.png", "a.png"]}),
        "nothing": [],
    }


EXPECTED = {
    "one": 1, "folder": 60, "pattern": 60, "csv": 3000, "jsonl": 3000, "table of paths": 3000,
    "table of pictures": 3000, "archive": 50, "folder of archives": 150, "pattern of archives": 150, "braces": 150,
    "folder of parts": 60,
    "list": 60 + 3000 + 2 + 3 + 50, "repeats": 9000, "items": 2, "array": 2, "memory table": 2, "nothing": 0,
}  # fmt: skip


def test_every_kind_of_input_is_the_same_as_a_list_and_as_a_stream() -> None:
    for name, images in kinds().items():
        stream = image_stream(images)
        first = list(stream)
        assert len(first) == EXPECTED[name] == stream.count, name
        assert len({item.id for item in first}) == len(first), name
        again = [replace(item, source=b"") for item in stream]
        assert again == [replace(item, source=b"") for item in first], name
        assert [item.id for item in load_images(images)] == [item.id for item in first], name
        fresh = image_stream(images)
        assert [item.id for item in islice(fresh, 3)] == [item.id for item in first[:3]], name
        assert fresh.survey() == len(first), name
        assert [item.id for item in fresh] == [item.id for item in first], name
        assert image_stream(stream) is stream


def test_items_of_the_files_are_what_they_were() -> None:
    kinds()
    assert load_images("tars")[51] == replace(load_images("tars/001.tar")[1])
    assert load_images("tars")[51].id == "tars/001.tar/0001.png"
    assert load_images("tars")[51].label == "dog"
    assert load_images("paths.jsonl")[5] == ImageItem("cat/5.png", Path("cat/5.png"), "cat")
    assert load_images("parts")[21].id == "parts/train-00001-of-00003.parquet#01"
    stream = image_stream("photos")
    assert [item.label for item in stream] == ["cat"] * 30 + ["dog"] * 30


def test_a_generator_is_kept() -> None:
    stream = image_stream(name for name in ("a.png", "b.png", "a.png"))
    for _ in range(2):
        assert [item.id for item in stream] == ["a.png", "b.png", "a.png (2)"]


def test_two_can_go_through_it_at_once() -> None:
    tables(2000)
    stream = image_stream(["paths.csv", "paths.csv"])
    pairs = list(zip(stream, stream))
    assert len(pairs) == 4000
    assert all(one == other for one, other in pairs)


def message(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


def test_what_is_wrong_is_said_as_early_as_it_can_be_seen() -> None:
    tables()
    for images in (
        "gone",
        "gone.csv",
        ["paths.csv", "gone.csv"],
        ["paths.csv", "gone.tar"],
        ["a.png", 3],
        3,
        "{0..3}.tar",
    ):
        assert message(lambda images=images: image_stream(images))  # type: ignore[misc]
    Path("a.csv").write_text("picture\nx\n")
    assert "no column" in message(lambda: image_stream("a.csv"))


def test_other_files_are_counted_and_the_first_is_named() -> None:
    kinds()
    for name in ("photos/notes.txt", "photos/dog/1.json", "photos/cat/a.tar"):
        Path(name).write_bytes(b"x")
    for images, count, first in (
        ("photos", 3, "photos/dog/1.json"),
        (["photos", "photos/dog"], 4, "photos/dog/1.json"),
        ("photos/*/*.*", 1, "photos/dog/1.json"),
        ("tars", 0, None),
    ):
        stream = image_stream(images)
        for _ in range(2):
            list(stream)
            assert (stream.others.count, stream.others.first) == (count, first), images


def test_nothing_is_listed_ahead_of_its_turn() -> None:
    listed = 0

    def listing() -> Iterator[ImageItem]:
        nonlocal listed
        for number in range(100_000):
            listed = number + 1
            yield ImageItem(f"{number}", PNG)

    images = iter(ImageStream(listing))
    next(images)
    assert listed <= 2
    for _ in range(1000):
        next(images)
    assert listed == 1001


@pytest.mark.parametrize("name", ["paths.csv", "paths.jsonl", "paths.parquet", "pictures.parquet"])
def test_memory_does_not_grow_with_the_rows(name: str) -> None:
    """Five times the rows; what is remembered of their ids (eight bytes each) is allowed for.

    Of two passes the one that took less: `pathlib` enters every name in the interpreter's table of strings, which
    grows all at once, by megabytes, now and then, and not twice within so few names.
    """
    peaks = []
    for rows in (3000, 14_000):
        tables(rows)
        list(islice(image_stream(name), 10))  # imports
        passes = []
        for _ in range(2):
            tracemalloc.start()
            count = sum(1 for _ in image_stream(name))
            passes.append(tracemalloc.get_traced_memory()[1] - 16 * rows)
            tracemalloc.stop()
            assert count == rows
        peaks.append(min(passes))
    assert peaks[1] < 1.5 * peaks[0]


def test_compressed_archives_name_the_remedy() -> None:
    Path("a.tar.gz").write_bytes(b"\x1f\x8b")
    assert "gunzip" in message(lambda: load_images("a.tar.gz"))
    assert "gunzip" in message(lambda: load_images(["a.tar.gz"]))
    Path("only").mkdir()
    Path("only/a.tgz").touch()
    assert "'only/a.tgz'" in message(lambda: load_images("only"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{8..11}.tar", ["8.tar", "9.tar", "10.tar", "11.tar"]),
        ("{008..011}.tar", ["008.tar", "009.tar", "010.tar", "011.tar"]),
        ("{2..0}", ["2", "1", "0"]),
        ("x{a,b}{0..1}y", ["xa0y", "xa1y", "xb0y", "xb1y"]),
        ("{a}{}{..}", ["{a}{}{..}"]),
        ("{a,}b", ["ab", "b"]),
    ],
)
def test_braces(text: str, names: list[str]) -> None:
    from deltaenergy.data.formats.folder import braces

    assert braces(text) == names


def test_braces_without_end() -> None:
    assert "more than" in message(lambda: load_images("{0..999999999}.tar"))
    assert "more than" in message(lambda: load_images("{0..9999}{0..9999}.tar"))


def test_a_file_with_braces_in_its_name_is_itself() -> None:
    Path("{1,2}.png").write_bytes(PNG)
    assert [item.id for item in load_images("{1,2}.png")] == ["{1,2}.png"]
    assert [item.id for item in load_images(["{1,2}.png"])] == ["{1,2}.png"]
