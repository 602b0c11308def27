"""The command line as a fixture, and a world for it to meet."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from deltaenergy import Model
from deltaenergy.data.remote.client import Connections, use_connections
from deltaenergy.data.remote.errors import RequestLimits
from tests.cli.runner import Runner
from tests.cli.world import World, content, make_world

# No single call takes a tenth of this.
SECONDS = 300


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """Run `deltaenergy` with these arguments. Python's way of showing warnings is put back afterwards."""
    show = warnings.showwarning
    yield Runner(capsys)
    warnings.showwarning = show


@pytest.fixture(scope="session")
def world(tiny_clip: Model, tiny_clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A user's folder. Session-wide: do not change it."""
    return make_world(tmp_path_factory.mktemp("world"), tiny_clip, tiny_clip_folder)


@pytest.fixture
def real_sets(shared_data: Path, tmp_path: Path) -> Path:
    """A folder of links to photographs of four classes, six of each in `seen` and in `new`, and to ten `textures`."""
    photos, textures = shared_data / "images" / "pacs" / "photo", shared_data / "images" / "dtd10"
    if not photos.is_dir() or not textures.is_dir():
        pytest.skip("the pictures of PACS or DTD are not there")
    links = {
        tmp_path / ("seen" if i < 6 else "new") / label / path.name: path
        for label in ("dog", "elephant", "guitar", "house")
        for i, path in enumerate(sorted((photos / label).iterdir())[:12])
    }
    links |= {
        tmp_path / "textures" / f"{kind.name}.jpg": min(kind.iterdir()) for kind in sorted(textures.iterdir())[:10]
    }
    for link, path in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return tmp_path


@pytest.fixture(scope="session")
def untouched(world: World) -> dict[Path, tuple[int, str]]:
    """What the user's files hold."""
    return content(world)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder so deep that `../nope` stays in the test's own; standard input is empty."""
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield place


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Fail the test, and go on with the next, when a call does not come back."""

    def stop(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"the call was not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_patience() -> Iterator[None]:
    """A server that refuses the connection is asked again at once."""
    use_connections(Connections(RequestLimits(first_wait=0.001)))
    yield
    use_connections()
