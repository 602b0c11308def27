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

    Whoever opens the pipe waits for ever; a watch ends that after a while, so that the test fails instead.
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
        watch = threading.Timer(60, _free, [[folder / "cat/pipe.png", folder / "cat/notes"]])
        watch.start()
        try:
            yield folder
        finally:
            watch.cancel()


def _free(pipes: list[Path]) -> None:
    for pipe in pipes:
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
