"""WebDataset archives and Parquet files with pictures at addresses: what local ones give, in few requests, and never
bytes of two versions.
"""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import deltaenergy as de
from deltaenergy.core.lru import LruCache
from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.file import RemoteFile, Slice
from deltaenergy.data.formats import tar
from deltaenergy.data.formats.parquet import ParquetCell, close_readers
from deltaenergy.data.items import (
    ImageItem,
    change_stamp,
    decoded,
    from_reference,
    hash_content,
    load_rgb,
    to_reference,
)
from deltaenergy.data.remote.blocks import (
    MOST_AHEAD,
    BlockCache,
    BlockReader,
    RangeReader,
    use_cache,
)
from deltaenergy.data.remote.client import Connections, RemoteObject, get_range, use_connections
from deltaenergy.data.remote.errors import Refused, RequestLimits
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.scale.build import build_store
from deltaenergy.source import image_stream, load_images
from deltaenergy.store.store import Store
from tests.cli.runner import Runner
from tests.clouds import S3Bucket as Bucket
from tests.data.archives import damaged, picture_bytes, valid_archive
from tests.data.colour_model import MeanColour
from tests.servers import Answer, FaultyServer
from tests.store.shards import SHARDS, Fetched, parquet_bytes, rows, samples, tar_bytes, write

KINDS = pytest.mark.parametrize("ending", [".tar", ".parquet"])
PICTURE = picture_bytes("PNG")


def message(images: object) -> str:
    with pytest.raises(InputError) as caught:
        load_images(images)
    return str(caught.value)


def reason(item: ImageItem) -> str:
    with pytest.raises(UnreadableImage) as caught, decoded(item):
        pass
    return str(caught.value)


def seen(items: list[ImageItem], prefix: str) -> list[tuple[str, str | None, object]]:
    """Of each image its id behind the prefix, its label, and its pixels or why there are none."""
    found: list[tuple[str, str | None, object]] = []
    for item in items:
        assert item.id.startswith(prefix)
        try:
            with decoded(item) as image:
                pixels: object = np.asarray(image).tobytes()
        except UnreadableImage as error:
            pixels = str(error).replace(prefix, "")
        found.append((item.id.removeprefix(prefix).replace(prefix, ""), item.label, pixels))
    return found


# What they stand for.


FORMS = ["one{}", "set/{{000..002}}{}", "set/{{001,000}}{}", "set/*{}", "set", "set/", "**/*{}", "set/00[12]{}"]


@KINDS
def test_every_form_gives_what_local_files_give(bucket: Bucket, tmp_path: Path, ending: str) -> None:
    make = SHARDS[ending]
    files = {f"set/{number:03}{ending}": make(4, 10 * number) for number in range(3)}
    files |= {f"one{ending}": make(3), "set/notes.txt": b"x", f"set/.hidden{ending}": b"x"}
    write(tmp_path, files)
    bucket.put(files)
    for form in (form.format(ending) for form in FORMS):
        found = seen(load_images(f"{bucket.url}/{form}"), bucket.url)
        assert found == seen(load_images(f"{tmp_path}/{form}"), str(tmp_path)), form
        assert len(found) >= 3 and all(isinstance(pixels, bytes) for _, _, pixels in found)


def test_pictures_beside_archives(bucket: Bucket, tmp_path: Path) -> None:
    """A folder with pictures is a folder of pictures; a pattern takes both, and tables only by their ending."""
    files = {
        "a.png": PICTURE,
        "b.tar": samples(2),
        "c.parquet": rows(2),
        "d/e.tar": samples(2),
        "t.csv": b"path\na.png",
    }
    write(tmp_path, files)
    bucket.put(files)
    for form in ("", "*", "**", "*.parquet", "d", "*.csv"):
        found = seen(load_images(f"{bucket.url}/{form}"), bucket.url)
        assert found == seen(load_images(f"{tmp_path}/{form}"), str(tmp_path))
    bucket.put({"odd/[1].tar": samples(1)})
    assert [item.id for item in load_images(f"{bucket.url}/odd/[1].tar")] == [f"{bucket.url}/odd/[1].tar/0000.png"]
    bucket.put({"odd/{1,2}.tar": samples(1)})
    assert [item.id for item in load_images(f"{bucket.url}/odd/{{1,2}}.tar")] == [
        f"{bucket.url}/odd/{{1,2}}.tar/0000.png"
    ]
    bucket.put({"x.tar/a.png": PICTURE})
    assert [item.id for item in load_images(f"{bucket.url}/x.tar/")] == [f"{bucket.url}/x.tar/a.png"]
    assert "end it with a slash" in message(f"{bucket.url}/x.tar")


def test_lists_may_name_archives_and_parquet_files(web: FaultyServer, bucket: Bucket) -> None:
    bucket.put({"b.parquet": rows(2)})
    tar = web.says("/a.tar", Answer(body=samples(2)))
    lines = [tar, f"{bucket.url}/b.parquet", f"{web.url}/c.png"]
    listed = load_images(web.says("/list.txt", Answer(body="\n".join(lines).encode())))
    assert [item.id for item in listed] == [
        f"{tar}/0000.png",
        f"{tar}/0001.png",
        *(f"{bucket.url}/b.parquet#{row}" for row in range(2)),
        f"{web.url}/c.png",
    ]
    assert load_images(lines) == listed


@KINDS
def test_each_name_of_braces_must_be_there(bucket: Bucket, ending: str) -> None:
    """Said before the first of them is read."""
    bucket.put({f"{number}{ending}": b"never read" for number in range(3)})
    said = message(f"{bucket.url}/{{0..3}}{ending}")
    assert f"{bucket.url}/3{ending}: nothing is at this URL" in said and "one of 4" in said


@KINDS
def test_on_a_web_server(web: FaultyServer, tmp_path: Path, ending: str) -> None:
    data = SHARDS[ending](5)
    (tmp_path / f"a{ending}").write_bytes(data)
    web.says(f"/a{ending}", Answer(body=data, headers={"ETag": '"7"'}))
    expected = seen(load_images(tmp_path / f"a{ending}"), str(tmp_path))
    assert seen(load_images(f"{web.url}/a{ending}"), web.url) == expected
    web.says(f"/b{ending}", Answer(body=data))
    for item in load_images(f"{web.url}/{{a,b}}{ending}?raw=1"):
        assert f"{ending}?raw=1" in item.id
        load_rgb(item)


# Requests.


@KINDS
@pytest.mark.parametrize("threads", [1, 32])
def test_a_pass_fetches_each_part_once(bucket: Bucket, ending: str, threads: int) -> None:
    """However many threads ask, nearly in order."""
    data = SHARDS[ending](150)
    bucket.put({f"a{ending}": data})
    items = load_images(f"{bucket.url}/a{ending}")
    use_cache()
    fetched = Fetched(1 << 17, 1 << 20)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda item: load_rgb(item).size, items))
    assert found == [(40, 30)] * 150
    assert len(fetched.parts) <= 0.1 * len(items)
    assert 0.9 * len(data) < fetched.bytes <= 1.1 * len(data)


def test_an_archive_is_listed_by_reading_it_once(bucket: Bucket) -> None:
    data = samples(100)
    bucket.put({"a.tar": data})
    fetched = Fetched(1 << 14, 1 << 18)
    stream = image_stream(f"{bucket.url}/a.tar")
    assert stream.survey() == 100
    assert fetched.bytes == len(data)
    # What is known of it is kept: whoever goes over the pictures fetches them alone.
    again = Fetched(1 << 14, 1 << 18)
    assert [item.id for item in stream] == [f"{bucket.url}/a.tar/{number:04}.png" for number in range(100)]
    assert not again.parts
    bucket.put({"a.tar": samples(100, 1)})
    assert next(iter(image_stream(f"{bucket.url}/a.tar"))).id.endswith("0001.png")


def test_large_files_in_an_archive_are_passed_over(bucket: Bucket) -> None:
    data = tar_bytes({f"{number}.{kind}": bytes(1 << 17) for number in range(8) for kind in ("png", "mp4")})
    bucket.put({"a.tar": data})
    fetched = Fetched(1 << 12, 1 << 20)
    assert len(load_images(f"{bucket.url}/a.tar")) == 8
    assert fetched.bytes < len(data) / 8


@pytest.mark.parametrize("group", [5, 1000])
def test_of_a_parquet_file_only_names_are_listed(bucket: Bucket, group: int) -> None:
    records = [{"bytes": np.random.default_rng(row).bytes(200_000), "path": None} for row in range(20)]
    columns = {"id": list(range(20)), "image": records, "label": ["cat"] * 20}
    data = parquet_bytes(columns, row_group_size=group)
    bucket.put({"a.parquet": data})
    fetched = Fetched(1 << 20, 1 << 26)
    items = load_images(f"{bucket.url}/a.parquet")
    assert [(item.id, item.label) for item in items] == [(str(row), "cat") for row in range(20)]
    assert fetched.bytes < len(data) / 20
    # The end, and what stands between two pieces of the column with pictures, at once.
    assert len(set(fetched.parts)) == len(fetched.parts) <= 2 + 1 + -(-20 // group)


def test_survey_and_pass_of_a_feature_store(bucket: Bucket, tmp_path: Path) -> None:
    """One reading for the list, one for the pictures, and nothing for hashes."""
    data = samples(120)
    bucket.put({"a.tar": data})
    fetched = Fetched(1 << 14, 1 << 18)
    build_store(MeanColour(), f"{bucket.url}/a.tar", tmp_path / "store", shard_size=25)
    assert fetched.bytes <= 2.1 * len(data)
    before = len(fetched.parts)
    build_store(MeanColour(), f"{bucket.url}/a.tar", tmp_path / "store", shard_size=25)
    assert len(fetched.parts) == before


# Parts.


class Lines:
    """An object in memory whose parts are fetched by this process."""

    def __init__(self, size: int, block_bytes: int = 10, kept_bytes: int = 1 << 26) -> None:
        self.data = np.random.default_rng(0).bytes(size)
        self.of = RemoteFile("s3://bucket/a.tar", size, "1")
        self.asked: list[int] = []
        self.parts = BlockCache(self._fetch, block_bytes=block_bytes, kept_bytes=kept_bytes)
        use_cache(self.parts)

    def _fetch(self, of: RemoteObject, start: int, end: int) -> bytes:
        self.asked.append(start // 10)
        return self.data[start:end]

    def settled(self) -> list[int]:
        """What was asked for, once all requests are answered."""
        for thread in threading.enumerate():
            if thread.name == "read ahead":
                thread.join()
        return sorted(self.asked)


def test_any_bytes_through_parts(no_patience: None) -> None:
    lines, rng = Lines(995), np.random.default_rng(1)
    reader = BlockReader(lines.of)
    for _ in range(300):
        start, count = int(rng.integers(0, 1010)), int(rng.integers(0, 120))
        assert reader.read(start, start + count) == lines.data[start : start + count]
    assert len(set(lines.settled())) == len(lines.asked)


def test_reading_ahead_is_in_proportion(no_patience: None) -> None:
    lines = Lines(1000)
    reader = BlockReader(lines.of)
    for part in (70, 30, 50):  # leaps
        reader.read(10 * part, 10 * part + 1)
    assert lines.settled() == [30, 50, 70]
    for part in range(51, 66):  # 15 in a row: one ahead
        reader.read(10 * part, 10 * part + 1)
    assert lines.settled() == [30, *range(50, 67), 70]
    # One who will read to the end asks for more each time, and never beyond the end.
    lines = Lines(1000)
    file = BlockReader(lines.of, caution=1).file()
    file.read(1)
    assert lines.settled() == [0, 1]
    file.seek(10)
    file.read(1)
    assert lines.settled() == [0, 1, 2, 3]
    for part in range(2, 100):
        file.seek(10 * part)
        file.read(1)
        assert max(lines.settled()) <= part + MOST_AHEAD
    assert lines.settled() == list(range(100))


def test_pieces_of_columns_are_asked_for_ahead(no_patience: None) -> None:
    """Wherever reading begins and ends, the bytes are those of the file."""
    lines, rng = Lines(995), np.random.default_rng(1)
    reader = RangeReader(lines.of)
    reader.ranges = [(start, start + 20) for start in range(100, 900, 40)]
    file = reader.file()
    file.seek(105)
    assert file.read(10) == lines.data[105:115]
    assert lines.settled() == [start // 10 for start in range(100, 100 + 40 * 17, 40)]
    for _ in range(300):
        start, count = int(rng.integers(0, 1010)), int(rng.integers(0, 120))
        file.seek(start)
        assert file.read(count) == lines.data[start : start + count]


def test_what_is_kept_is_bounded(no_patience: None) -> None:
    lines = Lines(100_000, block_bytes=2000, kept_bytes=9000)
    reader = BlockReader(lines.of, caution=1000)
    for start in range(0, 100_000, 500):
        reader.read(start, start + 500)
        lines.settled()
        assert len(lines.parts.blocks) <= 4
    assert sorted(lines.asked) == sorted(part * 200 for part in range(50))


def test_lists_that_are_kept_are_bounded(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put({f"{number}.tar": samples(20, number) for number in range(6)})
    first = load_images(f"{bucket.url}/*.tar")
    archives = [RemoteFile(f"{bucket.url}/{number}.tar").described() for number in range(6)]
    most = 2 * max(len(tar.LISTS.get(archive) or b"") for archive in archives)
    assert len(tar.LISTS) == 6 and most
    monkeypatch.setattr(tar, "LISTS", LruCache[RemoteFile, bytes](most, len))
    for _ in range(3):
        assert load_images(f"{bucket.url}/*.tar") == first
        kept = [len(tar.LISTS.get(archive) or b"") for archive in archives]
        assert 0 < sum(kept) <= most and kept[5], "the one that was used last is there"


# Faults.


@KINDS
def test_passing_failures_are_tried_again(web: FaultyServer, ending: str) -> None:
    fine = Answer(body=SHARDS[ending](3))
    url = web.says(f"/a{ending}", Answer(503), fine, Answer(500), Answer(body=fine.body, cut=9), fine)
    assert [load_rgb(item).size for item in load_images(url)] == [(40, 30)] * 3
    assert len(web.asked) == 5


@KINDS
def test_a_lost_store_ends_the_run(bucket: Bucket, ending: str) -> None:
    bucket.put({f"a{ending}": SHARDS[ending](30)})
    url = f"{bucket.url}/a{ending}"
    items = load_images(url)
    lost = True

    def fetch(of: RemoteObject, start: int, end: int) -> bytes:
        if lost:
            raise UnreachableError("gone")
        return get_range(of, start, end)

    use_cache(BlockCache(fetch))
    with pytest.raises(UnreachableError, match="gone"):
        load_rgb(items[0])
    # It is back: nothing of the failure stays.
    lost = False
    assert load_rgb(items[0]).size == (40, 30)
    lost = True
    tar.LISTS.clear()
    use_cache(BlockCache(fetch))
    with pytest.raises(UnreachableError, match="gone"):
        load_images(url)


@KINDS
def test_a_refused_part_is_no_damage(bucket: Bucket, ending: str) -> None:
    """It makes its pictures unreadable, and leaves the others; asked again, it may be there."""
    bucket.put({f"a{ending}": SHARDS[ending](40)})
    items = load_images(f"{bucket.url}/a{ending}")
    close_readers()
    refused = True

    def some(of: RemoteObject, start: int, end: int) -> bytes:
        if refused and start == 1 << 16:
            raise Refused(of.url, "its bytes break off")
        return get_range(of, start, end)

    use_cache(BlockCache(some, block_bytes=1 << 16))
    load_rgb(items[0])
    what = "archive" if ending == ".tar" else "table"
    assert reason(items[14]) == f"its {what} cannot be read: its bytes break off"
    load_rgb(items[39])
    refused = False
    load_rgb(items[14])


@KINDS
def test_an_archive_that_changes_is_never_read_as_a_mixture(bucket: Bucket, ending: str) -> None:
    """Of the same length, at that."""
    make = SHARDS[ending]
    bucket.put({f"a{ending}": make(6)})
    items = load_images(f"{bucket.url}/a{ending}")
    use_cache()
    bucket.put({f"a{ending}": make(6, 22)})
    assert {reason(item)[-30:] for item in items} == {"it changed after it was listed"}
    assert {change_stamp(item) for item in items}.isdisjoint(map(change_stamp, load_images(f"{bucket.url}/a{ending}")))
    bucket.put({f"a{ending}": b""})
    use_cache()
    assert "changed after it was listed" in reason(items[0])
    bucket.clear()
    use_cache()
    assert "nothing is at this URL" in reason(items[0]) or bucket.kind == "az"  # which checks the version first


def test_a_changed_archive_costs_a_request_a_part(bucket: Bucket) -> None:
    bucket.put({"a.tar": samples(30)})
    items = load_images(f"{bucket.url}/a.tar")
    use_cache()
    bucket.put({"a.tar": samples(30, 7)})
    fetched = Fetched(1 << 22, 1 << 26)
    assert all("changed" in reason(item) for item in items)
    assert len(fetched.parts) == 1


def test_an_archive_that_changes_while_it_is_listed(bucket: Bucket) -> None:
    bucket.put({"a.tar": samples(50)})
    others = [samples(50, 1)]

    def overtaken(of: RemoteObject, start: int, end: int) -> bytes:
        while start and others:
            bucket.put({"a.tar": others.pop()})
        return get_range(of, start, end)

    use_cache(BlockCache(overtaken, block_bytes=1 << 14))
    said = message(f"{bucket.url}/a.tar")
    assert f"The archive '{bucket.url}/a.tar' cannot be read: it changed after it was listed" in said


def test_a_refused_part_is_not_the_end_of_an_archive(bucket: Bucket) -> None:
    """Not even where tarfile reads the headers, which takes it for damage."""
    bucket.put({"a.tar": tar_bytes({f"{number}.png": PICTURE for number in range(20)}, {"comment": "of the whole"})})
    assert len(load_images(f"{bucket.url}/a.tar")) == 20
    tar.LISTS.clear()

    def refused(of: RemoteObject, start: int, end: int) -> bytes:
        if start:
            raise Refused(of.url, "no permission to read it")
        return get_range(of, start, end)

    use_cache(BlockCache(refused, block_bytes=1 << 14))
    assert f"The archive '{bucket.url}/a.tar' cannot be read: no permission" in message(f"{bucket.url}/a.tar")


@pytest.mark.parametrize("tags", [('"1"', '"2"'), (None, None)])
def test_versions_on_the_web(web: FaultyServer, tags: tuple[str | None, str | None]) -> None:
    """Without a tag, at least the size is looked at."""
    first, other = ({} if tag is None else {"ETag": tag} for tag in tags)
    url = web.says("/a.tar", Answer(body=samples(3), headers=first))
    items = load_images(url)
    use_cache()
    web.says("/a.tar", Answer(body=samples(3 if tags[0] else 9), headers=other))
    assert reason(items[0]) == "its archive cannot be read: it changed after it was listed"


@KINDS
def test_a_server_must_give_parts(web: FaultyServer, ending: str) -> None:
    data = SHARDS[ending](30)
    url = web.says(f"/a{ending}", Answer(body=data, headers={"No-Ranges": "1"}))
    use_cache(BlockCache(block_bytes=1 << 14))
    said = message(url)
    assert url in said and "its server does not give parts of a file" in said
    if ending == ".tar":  # a part that is the whole is given by any server
        use_cache()
        assert load_rgb(load_images(url)[29]).size == (40, 30)


def test_other_parts_than_asked_for_are_refused(web: FaultyServer) -> None:
    url = web.says("/a.tar", Answer(206, samples(2), headers={"Content-Range": "bytes 1-4/9"}))
    with pytest.raises(Refused, match="other parts"):
        get_range(RemoteObject(url, 9, ""), 2, 5)


def test_damaged_archives_are_what_they_are_on_disk(bucket: Bucket, tmp_path: Path) -> None:
    for seed in range(15):
        data = damaged(valid_archive(), np.random.default_rng(seed))
        write(tmp_path, {f"{seed}.tar": data})
        bucket.put({f"{seed}.tar": data})
        outcomes = []
        for place in (str(tmp_path), bucket.url):
            try:
                outcomes.append(seen(load_images(f"{place}/{seed}.tar"), place))
            except InputError as error:
                outcomes.append([(str(error).replace(place, "").replace("'", ""), None, None)])
        assert outcomes[0] == outcomes[1]


def test_damaged_row_groups_are_what_they_are_on_disk(bucket: Bucket, tmp_path: Path) -> None:
    data = bytearray(rows(20, group=10))
    data[len(data) // 3 : len(data) // 3 + 3000] = bytes(3000)
    write(tmp_path, {"a.parquet": bytes(data)})
    bucket.put({"a.parquet": bytes(data)})
    found = seen(load_images(f"{bucket.url}/a.parquet"), bucket.url)
    assert found == seen(load_images(tmp_path / "a.parquet"), str(tmp_path))
    assert any("damaged" in str(pixels) for _, _, pixels in found)


def test_what_is_no_archive(bucket: Bucket) -> None:
    bucket.put(
        {"a.tar": gzip.compress(samples(2)), "b.tar": b"x" * 1000, "c.tar": tar_bytes({"a.txt": b"x"}), "d.tar": b""}
    )
    assert "must be unpacked first" in message(f"{bucket.url}/a.tar")
    assert "cannot be read as a tar archive" in message(f"{bucket.url}/b.tar")
    assert "contains no image" in message(f"{bucket.url}/c.tar")
    assert f"{bucket.url}/d.tar" in message(f"{bucket.url}/d.tar")
    assert "nothing is at this URL" in message([f"{bucket.url}/missing.tar"])
    for name in ("a.tar.gz", "a.TGZ", "https://host/a.tar.zst?x=1"):
        said = message(name if "://" in name else f"{bucket.url}/{name}")
        assert "compressed archive" in said and "Unpack" in said


def test_one_closed_archive_does_not_close_a_folder(bucket: Bucket) -> None:
    bucket.put({"a.tar": samples(1), "b.tar": samples(1), "c.tar": samples(1)})
    bucket.front.refuses = lambda method, path: "b.tar" in path
    for form in ("", "*.tar"):
        a, b, c = load_images(f"{bucket.url}/{form}")
        assert b.id == f"{bucket.url}/b.tar" and "no permission to read it" in reason(b)
        assert [item.id[-14:] for item in (a, c)] == ["a.tar/0000.png", "c.tar/0000.png"]


def test_too_large_and_out_of_reach(no_patience: None) -> None:
    use_connections(Connections(RequestLimits(image_bytes=100)))
    assert "too large" in reason(ImageItem("a", Slice(RemoteFile("s3://b/a.tar", 1000, "1"), 512, 101)))
    assert "ends before" in reason(ImageItem("a", Slice(RemoteFile("s3://b/a.tar", 1000, "1"), 950, 51)))


def test_records_that_name_a_file(bucket: Bucket, web: FaultyServer) -> None:
    """It counts from the table's folder; an address stands for itself, and a local file is never opened."""
    address = web.says("/x.png", Answer(body=picture_bytes("PNG", 3)))
    paths = ["real.png", address, "/etc/passwd", "https://me:secret@host/a.png", None]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": None, "path": path} for path in paths], kind)
    bucket.put({"set/a.parquet": parquet_bytes({"image": column}), "set/real.png": PICTURE})
    items = load_images(f"{bucket.url}/set/a.parquet")
    np.testing.assert_array_equal(np.asarray(load_rgb(items[0])), np.asarray(open_image(PICTURE)))
    load_rgb(items[1])
    assert "cannot be read" in reason(items[2])
    assert "password" in reason(items[3]) and "secret" not in reason(items[3])
    assert "has no image" in reason(items[4])


# Feature stores and commands.


def test_address_version_and_place_stand_for_the_bytes(no_patience: None) -> None:
    files = [RemoteFile("s3://b/a.tar", 9, version) for version in ("1", "2")]
    sources = [Slice(file, offset, 3) for file in files for offset in (0, 512)]
    tables = [ParquetCell(files[0], "image", row) for row in (0, 1)]
    items = [ImageItem("a", source) for source in (*sources, *tables)]
    assert len({hash_content(item) for item in items}) == len({change_stamp(item) for item in items}) == 6
    assert hash_content(items[0]) == hash_content(ImageItem("another name", sources[0]))
    for item in items:
        assert from_reference(item.id, str(to_reference(item))) == item


@KINDS
def test_features_are_those_of_local_files(bucket: Bucket, tmp_path: Path, tiny_clip: de.Model, ending: str) -> None:
    files = {f"{number}{ending}": SHARDS[ending](6, 10 * number) for number in range(2)}
    write(tmp_path / "set", files)
    bucket.put(files)
    local = build_store(tiny_clip, tmp_path / "set", tmp_path / "local", shard_size=5)
    far = build_store(tiny_clip, f"{bucket.url}/", tmp_path / "far", shard_size=5)
    assert [one.removeprefix(bucket.url) for one in far.ids] == [one.split("/set", 1)[1] for one in local.ids]
    assert far.labels == local.labels and not far.unreadable
    np.testing.assert_allclose(far.features(), local.features(), atol=1e-6)


@KINDS
def test_a_run_that_lost_its_store_goes_on(bucket: Bucket, tmp_path: Path, ending: str) -> None:
    data = SHARDS[ending](60)
    bucket.put({f"a{ending}": data})
    url = f"{bucket.url}/a{ending}"
    whole = build_store(MeanColour(), url, tmp_path / "whole", shard_size=10)
    close_readers()
    lost = [len(data) >> 15 << 14]

    def failing(of: RemoteObject, start: int, end: int) -> bytes:
        if start in lost:
            raise UnreachableError("gone")
        return get_range(of, start, end)

    use_cache(BlockCache(failing, block_bytes=1 << 14, kept_bytes=1 << 16))
    with pytest.raises(UnreachableError):
        build_store(MeanColour(), url, tmp_path / "store", shard_size=10)
    with pytest.warns(UserWarning, match="incomplete"):
        part = Store.open(tmp_path / "store")
    assert 0 < len(part.ids) < 60 and not part.unreadable
    lost.clear()
    store = build_store(MeanColour(), url, tmp_path / "store", shard_size=10)
    assert store.ids == whole.ids
    np.testing.assert_array_equal(store.features(), whole.features())


@KINDS
def test_the_commands(
    bucket: Bucket, tmp_path: Path, tiny_clip_folder: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """Verdicts of pictures where they lie are those of their features, and those of local files."""
    files = {f"{number}{ending}": SHARDS[ending](4, 10 * number) for number in range(2)}
    write(tmp_path / "set", files)
    bucket.put(files)
    run, shards = Runner(capsys), f"{bucket.url}/{{0..1}}{ending}"
    options = ("--model", tiny_clip_folder, "--quiet")
    classes = ("--classes", "cat,dog,bird", "--score", "mcm")
    assert run("features", shards, "--out", tmp_path / "store", *options).code == 0
    tables = []
    for images in (shards, tmp_path / "store", tmp_path / "set"):
        assert run("score", images, *classes, *options, "--out", tmp_path / "out.csv").code == 0
        table = (tmp_path / "out.csv").read_text(encoding="utf-8")
        tables.append(table.replace(bucket.url, "").replace(str(tmp_path / "set"), "").splitlines())
    assert len(tables[0]) == 9 and tables[0] == tables[1] == tables[2]
    run_again = run("features", f"{bucket.url}/{{0..2}}{ending}", "--out", tmp_path / "store", *options)
    assert run_again.code == 2 and f"2{ending}: nothing is at this URL" in run_again.err
