"""Fill a feature store with several processes on this machine.

    de.build_store(model, "photos/", "photos.store", fill=de.scale.Processes(4))
    deltaenergy features photos/ --out photos.store --workers 4

Each worker loads the model, and encodes one planned shard after the other. One that dies is started again. The bytes of
the store do not depend on how many there are.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deltaenergy import errors
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError
from deltaenergy.scale.shard_worker import as_filled, settings_of
from deltaenergy.store.filling import PlanGone
from deltaenergy.store.writer import Filled, Task

# A shard whose worker died so often is given up: it would kill every other worker, too.
MOST_DEATHS = 3
_BUSY_SECONDS = 0.2


class Processes:
    """So many worker processes, for `build_store(…, fill=…)`.

    Args:
        workers: how many.
        device: where each runs the model, as `load_model` takes it.
    """

    def __init__(self, workers: int, device: str = "auto") -> None:
        if workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}.")
        self.workers, self.device = workers, device

    def __call__(self, task: Task, positions: Sequence[int], progress: Callable[[int, int], None]) -> Iterator[Filled]:
        """Fill the shards at these positions of the plan, and give each when it is there."""
        workers = min(self.workers, len(positions))
        if not workers:
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        settings = settings_of(task, self.device, max(1, cores // workers))
        crew = _Crew(settings, positions, workers)
        left = len(positions)
        try:
            while left:
                news = crew.news.get()
                if isinstance(news, BaseException):
                    raise news
                if isinstance(news, Filled):
                    left -= 1
                    yield news
                else:
                    progress(*news)
        finally:
            crew.end()


class _Crew:
    """The workers, a thread for each, which hands it positions and hears its answers."""

    def __init__(self, settings: dict[str, Any], positions: Sequence[int], workers: int) -> None:
        self.news: queue.SimpleQueue[Filled | tuple[int, int] | BaseException] = queue.SimpleQueue()
        self._settings = settings
        self._waiting = deque(positions)
        self._deaths: dict[int, int] = {}
        self._ended = threading.Event()
        self._processes: set[_Worker] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End all workers now; a shard that is not there is left for the next run."""
        self._ended.set()
        for worker in list(self._processes):
            worker.kill()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        worker: _Worker | None = None
        try:
            while not self._ended.is_set():
                try:
                    position = self._waiting.popleft()
                except IndexError:
                    return
                if worker is None:
                    worker = self._start()
                try:
                    filled = worker.fill(position, functools.partial(self._tell_of, position))
                except _Died as death:
                    self._processes.discard(worker)
                    worker = None
                    self._mourn(position, death)
                    continue
                if filled is not None:
                    self.news.put(filled)
                else:  # another run is at it
                    self._waiting.append(position)
                    self._ended.wait(_BUSY_SECONDS)
        except BaseException as error:
            self.news.put(error)
        finally:
            if worker is not None:
                self._processes.discard(worker)
                worker.kill()

    def _tell_of(self, position: int, done: int) -> None:
        self.news.put((position, done))

    def _start(self) -> _Worker:
        worker = _Worker(self._settings)
        self._processes.add(worker)
        if self._ended.is_set():  # between our last look and now
            worker.kill()
        return worker

    def _mourn(self, position: int, death: _Died) -> None:
        self._deaths[position] = self._deaths.get(position, 0) + 1
        if self._ended.is_set():
            return
        if self._deaths[position] >= MOST_DEATHS:
            raise ArtifactError(
                f"{self._settings['store']}: a worker ended {MOST_DEATHS} times while it encoded the same shard "
                f"({death}). If memory was short, give fewer workers or a smaller batch size. What the store holds so "
                "far is whole: run again to go on."
            )
        self._waiting.appendleft(position)


class _Died(Exception):
    """A worker process ended before it answered."""


class _Worker:
    """One process and its pipes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deltaenergy.scale.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self._last_words: deque[str] = deque(maxlen=1)
        threading.Thread(target=self._listen, daemon=True).start()
        self._settings: dict[str, Any] | None = settings

    def fill(self, position: int, progress: Callable[[int], None]) -> Filled | None:
        """Have a shard encoded; None while another run is at it."""
        if self._settings is not None:
            self._tell(self._settings)
            self._settings = None
        self._tell(position)
        while True:
            answer = self._hear()
            if "progress" in answer:
                progress(answer["progress"])
            elif "filled" in answer:
                return as_filled(answer["filled"])
            elif "busy" in answer:
                return None
            elif "gone" in answer:
                raise PlanGone
            elif "error" in answer:
                kind = getattr(errors, answer["kind"], DeltaEnergyError)
                raise kind(answer["error"])

    def kill(self) -> None:
        """End it now, and wait until it has."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _tell(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._death() from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):  # it ended, perhaps in the middle of a line
            raise self._death() from None
        return answer

    def _death(self) -> _Died:
        self.kill()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        time.sleep(0.05)  # its last words may still be on the way
        return _Died(" ".join([how, *self._last_words]))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stderr:
                if line.strip():
                    self._last_words.append(line.strip())
