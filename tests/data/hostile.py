"""A folder of pictures with everything in it that is no picture and could stop a run."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

# What is wrong in the folder, and a part of the reason that must be given.
PROBLEMS = {
    "cat/pipe.png": "a named pipe",
    "cat/socket.png": "a socket",
    "dog/zero.png": "a device",
    "dog/gone.png": "does not exist",
    "dog/circle.png": "circle",
    "lost": "does not exist",
    "loop": "circle",
}


@contextlib.contextmanager
def hostile(folder: Path) -> Iterator[Path]:
    """Put `PROBLEMS`, and links that lead back up, into a folder with `cat/` and `dog/`.

    Whoever opens a pipe waits for ever; a watch ends that, and the test fails instead.
    """
    os.mkfifo(folder / "cat/pipe.png")
    os.mkfifo(folder / "cat/notes")  # has no image's name: passed over like any other file
    (folder / "dog/zero.png").symlink_to("/dev/zero")
    (folder / "dog/gone.png").symlink_to("nowhere.png")
    (folder / "dog/circle.png").symlink_to("circle.png")
    (folder / "lost").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "dog/up").symlink_to("../../" + folder.name)
    # The name of a socket must be short.
    here = Path.cwd()
    os.chdir(folder / "cat")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.png")
        os.chdir(here)
        with _watch(folder / "cat/pipe.png", folder / "cat/notes") as opened:
            yield folder
    assert not opened, f"{opened[0]} was opened"


@contextlib.contextmanager
def _watch(*pipes: Path) -> Iterator[list[Path]]:
    """Free whoever waits for a writer of one of the pipes, and tell which it was."""
    opened: list[Path] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            for pipe in pipes:
                with contextlib.suppress(OSError):  # nobody reads it
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                    opened.append(pipe)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield opened
    finally:
        done.set()
        thread.join()
