"""Batches: who comes together is done together, nobody waits for nothing, and one cannot spoil the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltaenergy.serve.batcher import Batcher


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_jobs_that_wait_are_done_together_and_answers_are_not_swapped(pool: ThreadPoolExecutor) -> None:
    seen: list[list[int]] = []

    def run(jobs: Sequence[int]) -> list[int]:
        seen.append(list(jobs))
        return [10 * job for job in jobs]

    async def main() -> list[int]:
        batcher = Batcher(run, pool, size=4, wait=0.05)
        found = await asyncio.gather(*(batcher.submit(i) for i in range(10)))
        await batcher.close()
        return list(found)

    assert asyncio.run(main()) == [10 * i for i in range(10)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_comes_while_the_worker_is_busy_is_the_next_batch(pool: ThreadPoolExecutor) -> None:
    go, sizes = threading.Event(), []

    def run(jobs: Sequence[int]) -> list[int]:
        sizes.append(len(jobs))
        go.wait(10)
        return list(jobs)

    async def main() -> None:
        batcher = Batcher(run, pool, size=8, wait=0)
        first = asyncio.create_task(batcher.submit(0))
        while not sizes:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(batcher.submit(i)) for i in range(5)]
        await asyncio.sleep(0)
        assert len(batcher) == 5
        go.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert sizes == [1, 5]


def test_a_caller_that_went_away_costs_nothing_more(pool: ThreadPoolExecutor) -> None:
    go, seen = threading.Event(), []

    def run(jobs: Sequence[str]) -> list[str]:
        seen.extend(jobs)
        go.wait(10)
        return list(jobs)

    async def main() -> str:
        batcher = Batcher(run, pool, size=1, wait=0)
        first = asyncio.create_task(batcher.submit("first"))
        while not seen:
            await asyncio.sleep(0.001)
        gone, stays = (asyncio.create_task(batcher.submit(name)) for name in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        go.set()
        await first
        return await stays

    assert asyncio.run(main()) == "stays"
    assert seen == ["first", "stays"]


def test_a_job_that_fails_fails_alone(pool: ThreadPoolExecutor) -> None:
    def run(jobs: Sequence[int]) -> list[int]:
        if 2 in jobs:
            raise ValueError("two")
        return list(jobs)

    async def main() -> list[object]:
        batcher = Batcher(run, pool, size=4, wait=0.02)
        return list(await asyncio.gather(*(batcher.submit(i) for i in range(4)), return_exceptions=True))

    found = asyncio.run(main())
    assert [found[i] for i in (0, 1, 3)] == [0, 1, 3]
    assert isinstance(found[2], ValueError)


def test_closing_finishes_what_waits(pool: ThreadPoolExecutor) -> None:
    async def main() -> list[int]:
        batcher = Batcher(list, pool, size=1, wait=0)
        tasks = [asyncio.create_task(batcher.submit(i)) for i in range(6)]
        await asyncio.sleep(0)
        await batcher.close()
        return [await task for task in tasks]

    assert asyncio.run(main()) == list(range(6))


def test_workers_that_are_free_share_what_waits_and_all_is_done_before_it_closes() -> None:
    together, sizes = threading.Barrier(2), []

    def run(jobs: Sequence[int]) -> list[int]:
        sizes.append(len(jobs))
        together.wait(10)  # passes only if two batches are under way at the same time
        return [10 * job for job in jobs]

    async def main(pool: ThreadPoolExecutor) -> list[int]:
        batcher = Batcher(run, pool, size=8, wait=0.05, workers=2)
        jobs = [asyncio.create_task(batcher.submit(i)) for i in range(7)]
        await asyncio.sleep(0)
        await batcher.close()
        assert all(job.done() for job in jobs)
        return [job.result() for job in jobs]

    with ThreadPoolExecutor(2) as pool:
        assert asyncio.run(main(pool)) == [10 * i for i in range(7)]
    assert sorted(sizes) == [3, 4]


def test_no_more_batches_run_than_there_are_workers() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def run(jobs: Sequence[int]) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return list(jobs)

    async def main(pool: ThreadPoolExecutor) -> None:
        batcher = Batcher(run, pool, size=1, wait=0, workers=2)
        await asyncio.gather(*(batcher.submit(i) for i in range(12)))
        await batcher.close()

    with ThreadPoolExecutor(6) as pool:
        asyncio.run(main(pool))
    assert most == 2
