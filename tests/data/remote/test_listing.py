"""What addresses stand for: on an object store what a local folder would give, and clear words for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaenergy.data.file import RemoteFile
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.url import SCHEMES
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.source import labelled_folders, load_images
from tests.clouds import S3Bucket as Bucket
from tests.data.archives import picture_bytes
from tests.servers import Answer, FaultyServer

PICTURE = picture_bytes("PNG")
# Names whose order depends on whether folders or whole names are compared; and what is passed over.
TREE = [
    "a-b.png", "a/2.png", "a/10.png", "a/.hidden.png", "a/deep/x.JPG", "b/1.webp", "b/notes.txt", ".cache/1.png",
    "Z.png", "empty/", "ü/ö.png", "b/with space.png", "b/100%.png", "b/50%25.png",
    "b/c#1.png", "b/q?x=1.png", "b/a+b.png",
]  # fmt: skip


def message(images: object) -> str:
    with pytest.raises(InputError) as caught:
        load_images(images)
    return str(caught.value)


@pytest.fixture
def tree(bucket: Bucket, tmp_path: Path) -> tuple[Bucket, Path]:
    """The same files on the store, below photos/, and in a local folder."""
    for name in TREE:
        local = tmp_path / "photos" / name
        local.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            local.write_bytes(PICTURE)
        bucket.put({f"photos/{name}": b"" if name.endswith("/") else PICTURE})
    bucket.put({"photos-of-others/a.png": PICTURE, "notes/a.txt": b"x"})
    return bucket, tmp_path


def as_local(items: list[ImageItem], prefix: str) -> list[tuple[str, str | None, str | None]]:
    assert all(item.id.startswith(prefix) for item in items)
    return [(item.id.removeprefix(prefix), item.label, item.domain) for item in items]


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_is_listed_as_a_local_one(tree: tuple[Bucket, Path], slash: str) -> None:
    bucket, folder = tree
    found = load_images(f"{bucket.url}/photos{slash}")
    assert as_local(found, bucket.url) == as_local(load_images(folder / "photos"), folder.as_posix())
    assert len(found) == 13
    # A whole bucket is a folder too; its folders' names are labels.
    assert [item.label for item in load_images(f"{bucket.url}/") if "others" in item.id] == ["photos-of-others"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*.png",
        "*/1*",
        "a*",
        "**/*.png",
        "**",
        "*/*.[jw]*",
        "?/*.png",
        "a/**/*.JPG",
        "[ab]/?.png",
        "b/*",
        "**/deep",
        "*/**",
    ],
)
def test_a_pattern_matches_as_on_disk(tree: tuple[Bucket, Path], pattern: str) -> None:
    bucket, folder = tree
    found = load_images(f"{bucket.url}/photos/{pattern}")
    expected = load_images(f"{folder}/photos/{pattern}")
    assert as_local(found, bucket.url) == sorted(
        as_local(expected, folder.as_posix()), key=lambda one: one[0].split("/")
    )


def test_patterns_that_match_nothing(tree: tuple[Bucket, Path]) -> None:
    bucket, _ = tree
    assert "No image matches" in message(f"{bucket.url}/photos/*.gif")
    assert "leaves the bucket open" in message("s3://photos*/a.png")
    bucket.put({"odd/a[1].png": PICTURE})
    assert [item.id for item in load_images(f"{bucket.url}/odd/a[1].png")] == [f"{bucket.url}/odd/a[1].png"]


def test_sizes_and_tags_come_with_the_listing(tree: tuple[Bucket, Path]) -> None:
    bucket, _ = tree

    def stamps() -> dict[str, RemoteFile]:
        return {item.id: item.source for item in load_images(f"{bucket.url}/photos/")}  # type: ignore[misc]

    before = stamps()
    bucket.put({"photos/a/2.png": PICTURE + b"x", "photos/a/10.png": PICTURE})
    after = stamps()
    changed = [name for name in before if before[name] != after[name]]
    # Azure's tags tell when an object was written, the others' what was written.
    written = ["a/10.png", "a/2.png"] if bucket.kind == "az" else ["a/2.png"]
    assert changed == [f"{bucket.url}/photos/{name}" for name in written]
    assert after[changed[-1]].size == len(PICTURE) + 1
    alone = load_images(f"{bucket.url}/photos/a/2.png")[0].source
    assert alone == after[changed[-1]]


def test_classes_and_domains_from_folders(bucket: Bucket) -> None:
    bucket.put({f"{d}/{c}/{n}.png": PICTURE for d in ("photo", "sketch") for c in ("cat", "dog") for n in (1, 2)})
    found = labelled_folders(f"{bucket.url}/", domains=True)
    assert {(item.domain, item.label) for item in found} == {
        (d, c) for d in ("photo", "sketch") for c in ("cat", "dog")
    }
    assert {(item.domain, item.label) for item in labelled_folders(f"{bucket.url}/photo")} == {
        (None, "cat"),
        (None, "dog"),
    }
    bucket.put({"photo/stray.png": PICTURE})
    with pytest.raises(InputError, match=r"photo/stray\.png' is outside"):
        labelled_folders(f"{bucket.url}/photo")


def test_what_is_not_there(tree: tuple[Bucket, Path]) -> None:
    bucket, _ = tree
    assert "it is empty" in message(f"{bucket.url}/phots/")
    assert "notes/a.txt" in message(f"{bucket.url}/notes/")
    assert "nothing is at this URL" in message(f"{bucket.url}/photos/missing.png")
    with pytest.raises(UnreachableError, match="no such bucket"):
        load_images(f"{bucket.kind}://nobody-has-this-bucket/photos/")
    # In a list, a missing picture says so when its turn comes.
    assert load_images([f"{bucket.url}/photos/missing.png"])[0].source == RemoteFile(f"{bucket.url}/photos/missing.png")


def test_a_long_listing_comes_in_pages(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
    bucket.put({f"many/{i:02}.png": b"x" for i in range(12)})
    assert [item.id for item in load_images(f"{bucket.url}/many")] == [
        f"{bucket.url}/many/{i:02}.png" for i in range(12)
    ]


def test_a_forbidden_listing_names_the_credentials(web: FaultyServer, s3_environment: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="S3 needs the extra cloud")
    s3_environment.setenv("AWS_ENDPOINT_URL", web.url)
    body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>m</Message></Error>"
    web.says("/private", Answer(403, body))
    with pytest.raises(UnreachableError, match="AWS_ACCESS_KEY_ID"):
        load_images("s3://private/")
    # One look for a feature store, which may not be read: nothing is tried again.
    assert web.asked == ["/private/store.json", "/private"]


class TestWeb:
    def test_one_picture(self, web: FaultyServer) -> None:
        url = web.says("/a.png", Answer(body=PICTURE, headers={"ETag": '"7"'}))
        assert load_images(url) == [ImageItem(url, RemoteFile(url, len(PICTURE), "7"))]
        assert load_images([url]) == [ImageItem(url, RemoteFile(url))]
        assert "nothing is at this URL" in message(f"{web.url}/missing.png")

    def test_a_list_of_addresses(self, web: FaultyServer) -> None:
        lines = ["http://127.0.0.1:1/x?id=3", "", "  s3://bucket/b.png ", "HTTPS://host/c"]
        url = web.says("/list.txt", Answer(body="\r\n".join(lines).encode("utf-8-sig")))
        assert [item.id for item in load_images(url)] == [lines[0], "s3://bucket/b.png", "https://host/c"]
        assert web.asked == ["/list.txt"]

    @pytest.mark.parametrize(
        ("body", "part"),
        [
            (b"photos/b.png", "Line 1"),
            (b"ftp://host/b.png", "'ftp://'"),
            (b" \n\n", "contains no URL"),
            (b"\xff\xfe\x00", "UTF-8"),
        ],
    )
    def test_lists_with_errors(self, web: FaultyServer, body: bytes, part: str) -> None:
        said = message(web.says("/list.txt", Answer(body=body)))
        assert part in said and f"{web.url}/list.txt" in said

    def test_a_bad_line_is_unreadable_and_those_after_it_are_read(self, web: FaultyServer) -> None:
        lines = ["https://host/a.png", "photos/b.png", "https://me:hunter2@host/c.png", "https://host/d.png"]
        found = load_images(web.says("/list.txt", Answer(body="\n".join(lines).encode())))
        assert [item.problem is None for item in found] == [True, False, False, True]
        assert found[1].id == f"{web.url}/list.txt (line 2)" and "hunter2" not in str(found)

    def test_folders_cannot_be_listed(self, web: FaultyServer) -> None:
        for path in ("/photos/", "/photos/*.png"):
            assert "cannot be listed" in message(f"{web.url}{path}")
        with pytest.raises(InputError, match="cannot be listed"):
            labelled_folders(web.url + "/photos")
        assert not web.asked


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:secret@bucket/a.png",
        "https://me:secret@host/a.png",
        "https://secret@host/a.png",
        "https://host/a.png?X-Amz-Signature=secret",
        "https://host/a.png?sv=1&sig=secret",
        "ftp://me:secret@host/a.png",
    ],
)
def test_secrets_in_addresses_are_refused_and_not_repeated(address: str) -> None:
    for images in (address, [address]):
        said = message(images)
        assert "secret" not in said and "environment" in said


def test_wrong_addresses() -> None:
    assert "Did you mean 's3'" in message("s4://bucket/a.png")
    assert "names no bucket" in message("s3:///a.png")
    assert "names no host" in message("https://")
    assert "control characters" in message("s3://bucket/a\nb.png")
    assert set(SCHEMES) == {"s3", "gs", "az", "http", "https"}
