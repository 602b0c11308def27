"""Run jobs of many requests in batches: waiting jobs are shared among the free workers.

A job waits at most `wait` seconds for others, and only while all workers are idle: under load, batches fill by
themselves. A job whose caller has gone is skipped. If a batch fails, its jobs are run one by one, so one cannot spoil
the others.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Batcher(Generic[Job, Result]):
    """Runs jobs in batches, one batch per worker at a time.

    Args:
        run: processes a batch in a thread of `executor`; returns results in the order of the jobs.
        executor: several batchers may share it.
        size: maximum jobs per batch.
        wait: seconds that a job may wait for others.
        workers: batches that run at a time.
        on_batch: called with the size of every batch.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], Sequence[Result]],
        executor: Executor,
        size: int,
        wait: float,
        workers: int = 1,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._run, self._executor, self._size, self._wait, self._on_batch = run, executor, size, wait, on_batch
        self._waiting: deque[tuple[Job, asyncio.Future[Result]]] = deque()
        self._come = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._free, self._worker = workers, asyncio.Semaphore(workers)
        self._batches: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(self, job: Job) -> Result:
        """The result of a job. If the caller is cancelled before its batch starts, the job is never run."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        self._come.set()
        return await future

    async def close(self) -> None:
        """Finish what waits, then stop."""
        while self._waiting or self._batches:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await self._come.wait()
            await self._company()
            self._come.clear()
            while self._waiting:
                await self._worker.acquire()
                self._free -= 1
                batch = asyncio.create_task(self._work_on(self._take()))
                self._batches.add(batch)
                batch.add_done_callback(self._batches.discard)

    async def _work_on(self, batch: list[tuple[Job, asyncio.Future[Result]]]) -> None:
        try:
            if batch:
                await self._do(batch)
        finally:
            self._free += 1
            self._worker.release()

    async def _company(self) -> None:
        """Wait a moment for more jobs."""
        if self._wait <= 0:
            return
        until = asyncio.get_running_loop().time() + self._wait
        while len(self._waiting) < self._size and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, 0.001))

    def _take(self) -> list[tuple[Job, asyncio.Future[Result]]]:
        """A fair share of the waiting jobs; other free workers take theirs."""
        share = min(self._size, math.ceil(len(self._waiting) / (self._free + 1)))
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        while self._waiting and len(batch) < share:
            job, future = self._waiting.popleft()
            if not future.done():
                batch.append((job, future))
        return batch

    async def _do(self, batch: list[tuple[Job, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        self._on_batch(len(batch))
        try:
            results = await loop.run_in_executor(self._executor, self._run, [job for job, _ in batch])
        except Exception as error:
            if len(batch) > 1:
                for one in batch:
                    await self._do([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
