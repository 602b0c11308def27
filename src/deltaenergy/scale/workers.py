"""Worker processes on this machine that join a store: `python -m deltaenergy.scale.workers` is one of them.

    build_store(model, "photos/", "photos.store", workers=4)
    deltaenergy features photos/ --out photos.store --workers 4

A worker reads its settings from standard input, and prints what it has finished, a line each. When its input ends,
because the process that started it has ended, it ends at once. One that dies is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from deltaenergy import errors
from deltaenergy.core.progress import Progress
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, explain_os_error
from deltaenergy.store.store import Store
from deltaenergy.store.writer import Work, join_here

# Workers that died one after the other without a shard being finished: one more would die as well.
MOST_DEATHS = 3
# What an answer begins with, among what else a worker prints.
_ANSWER = "deltaenergy: "

Events: TypeAlias = "queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]"


def join_with_workers(work: Work, progress: Progress | None, *, count: int, device: str = "auto") -> None:
    """Have this many processes encode the planned shards."""
    settings = worker_settings(work)
    count = min(count, len(work.plan.shards))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings |= {"device": device, "threads": max(1, cores // count), "step": count}
    events: Events = queue.SimpleQueue()
    so_far = work.counting(progress)
    workers = [_Worker({**settings, "first": first}, events) for first in range(count)]
    deaths = 0
    try:
        while workers:
            worker, answer = events.get()
            if answer is None:
                workers.remove(worker)
                if (death := worker.death()) is not None:
                    deaths += 1
                    if deaths == MOST_DEATHS:
                        raise ArtifactError(
                            f"{work.folder}: {MOST_DEATHS} workers ended one after the other without finishing a shard "
                            f"({death}). If memory is short, use fewer workers or a smaller batch size. What the store "
                            "has so far is whole: run again to resume."
                        )
                    workers.append(_Worker(worker.settings, events))
            else:
                raise_error(answer)
                so_far(answer["shard"], answer["images"], answer["finished"])
                deaths = 0 if answer["finished"] else deaths
    finally:
        for worker in workers:
            worker.kill()


def worker_settings(work: Work) -> dict[str, Any]:
    """What another process must know of the work; an error if only this one has some of the images."""
    if work.in_memory:
        raise InputError(
            f"The image {next(iter(work.in_memory))!r} is not a file, so other processes cannot read it. Save the "
            "images and pass their folder, or omit workers."
        )
    model = dict(work.manifest.model)
    if Path(model["name"]).expanduser().is_dir():
        model["name"] = os.path.abspath(Path(model["name"]).expanduser())  # noqa: PTH100
    return {"store": work.folder.address, "model": model}


def open_work(settings: dict[str, Any], device: str) -> tuple[Work, Any] | None:
    """The work that another process has planned, and the model for it; None if there is nothing left to do."""
    from deltaenergy.models.loading.load import load_recorded

    work = Work.at(settings["store"])
    if work is None:
        return None
    model = load_recorded(settings["model"], device)
    Store(work.folder, work.manifest).check_model(model)
    return work, model


@contextlib.contextmanager
def answering(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a process answers to the one that has it work: also the error, if it is the user's to fix."""
    found: dict[str, Any] = {**answer, "error": None, "kind": None}
    try:
        yield found
    except DeltaEnergyError as error:
        found |= {"error": str(error), "kind": type(error).__name__}
    except OSError as error:
        found |= {"error": explain_os_error(error), "kind": "ArtifactError"}


def raise_error(answer: Mapping[str, Any]) -> None:
    """Raise the error of an answer, if it has one."""
    if answer.get("error") is not None:
        raise getattr(errors, answer["kind"], ArtifactError)(answer["error"])


class _Worker:
    """One process. Its answers go into a queue, and None when it has ended; what else it prints is its last words."""

    def __init__(self, settings: dict[str, Any], events: Events) -> None:
        self.settings, self._events, self._last_words = settings, events, ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deltaenergy.scale.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died already, which is heard
            self._process.stdin.write(json.dumps(settings) + "\n")
            self._process.stdin.flush()

    def death(self) -> str | None:
        """How it died; None if it had done its work."""
        code = self._process.wait()
        if code == 0:
            return None
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how} {self._last_words}".rstrip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                with contextlib.suppress(ValueError):  # it died in the middle of a line
                    self._events.put((self, json.loads(line.removeprefix(_ANSWER))))
            else:
                self._last_words = line.strip() or self._last_words
        self._events.put((self, None))


def main() -> None:
    """Work until no shard is left, or the input ends."""
    # The process that started this one is interrupted as well, and decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline() or "null")
    threading.Thread(target=_end_with_input, daemon=True).start()
    if settings is None:
        return
    import torch

    def report(shard: int, images: int, finished: bool) -> None:
        _say({"shard": shard, "images": images, "finished": finished})

    with answering({}) as end:
        torch.set_num_threads(settings["threads"])
        if (opened := open_work(settings, settings["device"])) is not None:
            join_here(*opened, first=settings["first"], step=settings["step"], report=report)
    if end["error"] is not None:
        _say(end)


def _say(answer: dict[str, Any]) -> None:
    """Write an answer, on a line of its own whatever else is printed."""
    os.write(1, f"\n{_ANSWER}{json.dumps(answer)}\n".encode())


def _end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
