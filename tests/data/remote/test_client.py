"""Bytes from addresses: tried again where that helps, said at once where not, and a lost store ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deltaenergy.data.content import content_or_error, stamp_of
from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.items import ImageItem
from deltaenergy.data.remote.client import Connections, RemoteFile, fetch, forget_connections
from deltaenergy.data.remote.listing import UNLISTED
from deltaenergy.data.remote.stores import RequestLimits
from deltaenergy.errors import InputError, UnreachableError
from deltaenergy.source import build_store, load_images
from deltaenergy.store.store import FeatureStore
from tests.data.archives import picture_bytes
from tests.data.colour_model import MeanColour
from tests.data.conftest import IMPATIENT
from tests.servers import Answer, Bucket, FaultyServer, faulty_server

PICTURE = picture_bytes("PNG")
FINE = Answer(body=PICTURE)


def file(url: str, size: int | None = None) -> RemoteFile:
    return RemoteFile(url, size, UNLISTED)


def reason(url: str) -> str:
    with pytest.raises(UnreadableImage) as caught:
        open_image(file(url))
    return str(caught.value)


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(open_image(data))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(web: FaultyServer, status: int) -> None:
    url = web.says("/a.png", Answer(status), Answer(status), FINE)
    np.testing.assert_array_equal(np.asarray(open_image(file(url))), pixels(PICTURE))
    assert web.asked == ["/a.png"] * 3


def test_a_cut_answer_is_tried_again(web: FaultyServer) -> None:
    url = web.says("/a.png", Answer(body=PICTURE, cut=100), FINE)
    np.testing.assert_array_equal(np.asarray(open_image(file(url))), pixels(PICTURE))
    assert "break off" in reason(web.says("/b.png", Answer(body=PICTURE, cut=100)))


def test_waits_double_and_are_drawn_at_random(web: FaultyServer) -> None:
    waits: list[float] = []
    forget_connections(Connections(sleep=waits.append))
    url = web.says("/a.png", Answer(500))
    for _ in range(3):
        assert "status 500" in reason(url)
    assert len(web.asked) == 3 * RequestLimits().attempts
    for round_ in np.reshape(waits, (3, -1)):
        assert len(round_) == RequestLimits().attempts - 1
        for attempt, wait in enumerate(round_):
            assert 0.25 * 2**attempt <= wait <= 0.5 * 2**attempt
    assert len(set(waits)) == len(waits)


def test_after_the_longest_time_there_is_no_new_attempt(web: FaultyServer) -> None:
    forget_connections(Connections(RequestLimits(most_seconds=-1.0)))
    reason(web.says("/a.png", Answer(500)))
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("status", "part"),
    [(404, "nothing is at this address"), (410, "nothing"), (403, "no permission"), (401, "password"), (400, "400")],
)
def test_what_is_missing_or_forbidden_is_said_at_once(web: FaultyServer, status: int, part: str) -> None:
    assert part in reason(web.says("/a.png", Answer(status)))
    assert len(web.asked) == 1


def test_a_slow_answer_is_given_up(web: FaultyServer) -> None:
    short = replace(IMPATIENT, silent_seconds=0.05)
    forget_connections(Connections(short))
    url = web.says("/a.png", Answer(body=PICTURE, delay=0.4), FINE)
    assert fetch(url, 0, 1 << 20) == PICTURE
    forget_connections(Connections(short))
    with pytest.raises(UnreachableError, match="in time"):
        fetch(web.says("/b.png", Answer(body=PICTURE, delay=0.4)), 0, 1 << 20)


def test_more_than_the_limit_is_never_read(web: FaultyServer) -> None:
    forget_connections(Connections(RequestLimits(image_bytes=len(PICTURE) - 1)))
    assert "too large" in reason(web.says("/a.png", FINE))
    with pytest.raises(UnreadableImage, match="too large"):
        file(f"{web.url}/never-asked.png", len(PICTURE)).open()
    assert web.asked == ["/a.png"]
    forget_connections(Connections(RequestLimits(image_bytes=len(PICTURE))))
    open_image(file(f"{web.url}/a.png"))


def test_the_address_and_stamp_stand_for_the_bytes(web: FaultyServer) -> None:
    one, other = (web.says(path, FINE) for path in ("/a.png", "/b.png"))
    sources = [file(one), file(other), RemoteFile(one, 3, "3 bytes, tag 7"), RemoteFile(one, 3, "3 bytes, tag 8")]
    items = [ImageItem("a", source) for source in sources]
    assert len({content_or_error(item) for item in items}) == 4
    assert content_or_error(items[0]) == content_or_error(ImageItem("another name", file(one)))
    assert [stamp_of(item) for item in items[1:3]] == [UNLISTED, "3 bytes, tag 7"]
    assert not web.asked


def test_what_is_no_picture(web: FaultyServer) -> None:
    assert "empty" in reason(web.says("/b.png", Answer(body=b"")))
    assert "it holds text" in reason(web.says("/c.png", Answer(body=b"<html>not here</html>")))


def test_parts_need_a_server_that_gives_them(web: FaultyServer) -> None:
    assert fetch(web.says("/a", Answer(body=b"0123456789")), 3, 6) == b"345"
    assert fetch(f"{web.url}/a", 8, 20) == b"89"
    assert fetch(f"{web.url}/a", 10, 20) == b""
    with pytest.raises(OSError, match="parts of a file"):
        fetch(web.says("/b", Answer(body=b"0123456789", headers={"No-Ranges": "1"})), 3, 6)


def test_a_refused_connection_ends_the_run(web: FaultyServer) -> None:
    url = web.says("/a.png", FINE)
    fetch(url, 0, 10)
    web.stop()
    with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{web.port} cannot be reached"):
        open_image(file(url))


def test_a_dead_server_of_a_list_does_not_end_the_run(web: FaultyServer) -> None:
    """It never answered while another one does. One that answered before, and is gone, ends it."""
    alive = web.says("/a.png", FINE)

    def other_threads_read(_: float) -> None:
        fetch(alive, 0, 10)

    forget_connections(Connections(IMPATIENT, sleep=other_threads_read))
    with faulty_server() as dead:
        url = dead.says("/a.png", FINE)
        fetch(url, 0, 10)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        open_image(file(url))
    forget_connections(Connections(IMPATIENT, sleep=other_threads_read))
    assert "its server cannot be reached" in reason(url)


def test_one_page_that_hangs_does_not_end_the_run(web: FaultyServer) -> None:
    """As long as its server gives something else meanwhile."""
    short, gives_something = replace(IMPATIENT, silent_seconds=0.1), True
    hangs, fine = web.says("/a.png", Answer(body=PICTURE, delay=0.5)), web.says("/b.png", FINE)
    forget_connections(Connections(short, sleep=lambda _: gives_something and fetch(fine, 0, 10)))
    assert "its server cannot be reached: it does not answer in time" in reason(hangs)
    gives_something = False
    with pytest.raises(UnreachableError):
        open_image(file(hangs))


def test_many_requests_at_a_time(web: FaultyServer, tiny_clip_folder: Path) -> None:
    """Four threads are enough for files; for addresses, many wait together."""
    import deltaenergy

    urls = [web.says(f"/{i}.png", Answer(body=PICTURE, delay=0.3)) for i in range(40)]
    assert len(deltaenergy.load_model(str(tiny_clip_folder)).encode(urls, batch_size=32).items) == 40
    assert web.most > 8


class TestS3:
    def test_a_picture(self, s3_bucket: Bucket) -> None:
        s3_bucket.put({"a/b.png": PICTURE, "empty.png": b""})
        item = load_images(f"{s3_bucket.url}/a/b.png")[0]
        np.testing.assert_array_equal(np.asarray(open_image(item.source)), pixels(PICTURE))
        assert reason(f"{s3_bucket.url}/empty.png") == "the file is empty"
        assert reason(f"{s3_bucket.url}/missing.png") == "nothing is at this address"
        assert fetch(f"{s3_bucket.url}/a/b.png", 5, 9) == PICTURE[5:9]

    def test_a_missing_bucket_ends_the_run(self, s3_bucket: Bucket) -> None:
        with pytest.raises(UnreachableError, match="no such bucket"):
            open_image(file("s3://nobody-has-this/a.png"))

    def test_credentials_come_from_the_environment(self, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(UnreachableError, match="AWS_ACCESS_KEY_ID"):
            load_images(f"{s3_bucket.url}/")
        import fsspec.config

        s3_bucket.client.put_object(Bucket=s3_bucket.name, Key="a.png", Body=PICTURE, ACL="public-read")
        forget_connections()
        settings: dict[str, dict[str, object]] = {}
        fsspec.config.set_conf_env(settings, {"FSSPEC_S3_ANON": "true"})  # as fsspec does when it is imported
        monkeypatch.setitem(fsspec.config.conf, "s3", settings["s3"])
        assert fetch(f"{s3_bucket.url}/a.png", 0, 5) == PICTURE[:5]

    @pytest.mark.parametrize(
        ("status", "code", "ends"),
        [
            (403, "AccessDenied", False),
            (403, "InvalidAccessKeyId", True),
            (403, "SignatureDoesNotMatch", True),
            (400, "ExpiredToken", True),
            (404, "NoSuchKey", False),
            (404, "NoSuchBucket", True),
            (500, "InternalError", True),
            (503, "SlowDown", True),
            (503, "ServiceUnavailable", True),
        ],
    )
    def test_whose_fault_an_answer_is(
        self, web: FaultyServer, s3_environment: pytest.MonkeyPatch, status: int, code: str, ends: bool
    ) -> None:
        """Credentials that ran out, or a store that fails, are no fault of a million pictures."""
        pytest.importorskip("s3fs", reason="S3 needs the extra cloud")
        s3_environment.setenv("AWS_ENDPOINT_URL", web.url)
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
        web.says("/bucket/a.png", Answer(status, body, headers={"Content-Type": "application/xml"}))
        with pytest.raises(UnreachableError if ends else UnreadableImage):
            open_image(file("s3://bucket/a.png"))
        assert len(web.asked) == (RequestLimits().attempts if status >= 500 else 1)

    def test_passing_failures_are_tried_again(self, web: FaultyServer, s3_environment: pytest.MonkeyPatch) -> None:
        pytest.importorskip("s3fs", reason="S3 needs the extra cloud")
        s3_environment.setenv("AWS_ENDPOINT_URL", web.url)
        web.says("/bucket/a.png", Answer(503), Answer(500), Answer(body=PICTURE, cut=9), FINE)
        open_image(file("s3://bucket/a.png"))
        assert len(web.asked) == 4


def test_a_lost_store_is_not_recorded_as_unreadable_pictures(web: FaultyServer, tmp_path: Path) -> None:
    """The run ends, and the next one goes on; the store is the one that an undisturbed run makes."""
    pictures = {f"/{i}.png": picture_bytes("PNG", i) for i in range(6)}
    urls = [web.says(path, Answer(body=data)) for path, data in pictures.items()]
    expected = build_store(MeanColour(), urls, tmp_path / "whole", shard_size=2)
    web.script["/4.png"] = [Answer(503)]
    with pytest.raises(UnreachableError, match="status 503"):
        build_store(MeanColour(), urls, tmp_path / "store", shard_size=2)
    with pytest.warns(UserWarning, match="not finished"):
        part = FeatureStore.open(tmp_path / "store")
    assert part.ids == urls[:4] and not part.unreadable
    web.says("/4.png", Answer(body=pictures["/4.png"]))
    store = build_store(MeanColour(), urls, tmp_path / "store", shard_size=2)
    assert store.ids == urls
    np.testing.assert_array_equal(store.features, expected.features)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http", "https"])
def test_a_missing_package_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_connections()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name != "fsspec" else object())
    with pytest.raises(InputError, match=r"deltaenergy\[cloud\]"):
        load_images(f"{scheme}://somewhere/a.png")
