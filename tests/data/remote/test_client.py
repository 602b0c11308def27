"""The web: tried again where that helps, reported at once where not, and a lost server ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.file import UNLISTED, RemoteFile
from deltaenergy.data.items import ImageItem, change_stamp, hash_content
from deltaenergy.data.remote.client import Connections, get, get_range, head, use_connections
from deltaenergy.data.remote.errors import RequestLimits
from deltaenergy.errors import UnreachableError
from deltaenergy.scale.build import build_store
from deltaenergy.store.store import Store
from tests.data.archives import picture_bytes
from tests.data.colour_model import MeanColour
from tests.data.conftest import IMPATIENT
from tests.servers import Answer, FaultyServer, faulty_server

PICTURE = picture_bytes("PNG")
FINE = Answer(body=PICTURE)


def file(url: str, size: int | None = None) -> RemoteFile:
    return RemoteFile(url, size)


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
    use_connections(Connections(sleep=waits.append))
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
    use_connections(Connections(RequestLimits(most_seconds=-1.0)))
    reason(web.says("/a.png", Answer(500)))
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("status", "part"),
    [(404, "nothing is at this URL"), (410, "nothing"), (403, "no permission"), (401, "password"), (400, "400")],
)
def test_what_is_missing_or_forbidden_is_said_at_once(web: FaultyServer, status: int, part: str) -> None:
    assert part in reason(web.says("/a.png", Answer(status)))
    assert len(web.asked) == 1


def test_a_slow_answer_is_given_up(web: FaultyServer) -> None:
    short = replace(IMPATIENT, silent_seconds=0.05)
    use_connections(Connections(short))
    url = web.says("/a.png", Answer(body=PICTURE, delay=0.4), FINE)
    assert get(url, 1 << 20) == PICTURE
    use_connections(Connections(short))
    with pytest.raises(UnreachableError, match="in time"):
        get(web.says("/b.png", Answer(body=PICTURE, delay=0.4)), 1 << 20)


def test_more_than_the_limit_is_never_read(web: FaultyServer) -> None:
    use_connections(Connections(RequestLimits(image_bytes=len(PICTURE) - 1)))
    assert "too large" in reason(web.says("/a.png", FINE))
    with pytest.raises(UnreadableImage, match="too large"):
        file(f"{web.url}/never-asked.png", len(PICTURE)).open()
    assert web.asked == ["/a.png"]
    use_connections(Connections(RequestLimits(image_bytes=len(PICTURE))))
    open_image(file(f"{web.url}/a.png"))


def test_the_url_and_stamp_stand_for_the_bytes(web: FaultyServer) -> None:
    one, other = (web.says(path, FINE) for path in ("/a.png", "/b.png"))
    sources = [file(one), file(other), RemoteFile(one, 3, "7"), RemoteFile(one, 3, "8")]
    items = [ImageItem("a", source) for source in sources]
    assert len({hash_content(item) for item in items}) == 4
    assert hash_content(items[0]) == hash_content(ImageItem("another name", file(one)))
    assert [change_stamp(item) for item in items[1:3]] == [UNLISTED, "3 bytes, tag 7"]
    assert not web.asked


def test_what_is_no_picture(web: FaultyServer) -> None:
    assert "empty" in reason(web.says("/b.png", Answer(body=b"")))
    assert "it contains text" in reason(web.says("/c.png", Answer(body=b"<html>not here</html>")))


def test_parts_need_a_server_that_gives_them(web: FaultyServer) -> None:
    ten = head(web.says("/a", Answer(body=b"0123456789")))
    assert get_range(ten, 3, 6) == b"345" and get_range(ten, 0, 10) == b"0123456789"
    other = head(web.says("/b", Answer(body=b"0123456789", headers={"No-Ranges": "1"})))
    assert get_range(other, 0, 10) == b"0123456789", "any server gives a part that is the whole"
    with pytest.raises(OSError, match="parts of a file"):
        get_range(other, 3, 6)


def test_a_refused_connection_ends_the_run(web: FaultyServer) -> None:
    url = web.says("/a.png", FINE)
    get(url, 1 << 20)
    web.stop()
    with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{web.port} cannot be reached"):
        open_image(file(url))


def test_a_dead_server_of_a_list_does_not_end_the_run(web: FaultyServer) -> None:
    """It never answered while another one does. One that answered before, and is gone, ends it."""
    alive = web.says("/a.png", FINE)

    def other_threads_read(_: float) -> None:
        get(alive, 1 << 20)

    use_connections(Connections(IMPATIENT, sleep=other_threads_read))
    with faulty_server() as dead:
        url = dead.says("/a.png", FINE)
        get(url, 1 << 20)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        open_image(file(url))
    use_connections(Connections(IMPATIENT, sleep=other_threads_read))
    assert "its server cannot be reached" in reason(url)


def test_one_page_that_hangs_does_not_end_the_run(web: FaultyServer) -> None:
    """As long as its server gives something else meanwhile."""
    short, gives_something = replace(IMPATIENT, silent_seconds=0.1), True
    hangs, fine = web.says("/a.png", Answer(body=PICTURE, delay=0.5)), web.says("/b.png", FINE)
    use_connections(Connections(short, sleep=lambda _: gives_something and get(fine, 1 << 20)))
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


def test_a_lost_store_is_not_recorded_as_unreadable_pictures(web: FaultyServer, tmp_path: Path) -> None:
    """The run ends, and the next one goes on; the store is the one that an undisturbed run makes."""
    pictures = {f"/{i}.png": picture_bytes("PNG", i) for i in range(6)}
    urls = [web.says(path, Answer(body=data)) for path, data in pictures.items()]
    expected = build_store(MeanColour(), urls, tmp_path / "whole", shard_size=2)
    for lost in ("/4.png", "/5.png"):  # of one shard: an answer to the other would excuse the server
        web.says(lost, Answer(503))
    with pytest.raises(UnreachableError, match="status 503"):
        build_store(MeanColour(), urls, tmp_path / "store", shard_size=2)
    with pytest.warns(UserWarning, match="incomplete"):
        part = Store.open(tmp_path / "store")
    assert part.ids == urls[:4] and not part.unreadable
    for found in ("/4.png", "/5.png"):
        web.says(found, Answer(body=pictures[found]))
    store = build_store(MeanColour(), urls, tmp_path / "store", shard_size=2)
    assert store.ids == urls
    np.testing.assert_array_equal(store.features(), expected.features())
