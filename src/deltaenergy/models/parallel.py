"""Batches side by side on the CPU: one thread for each core, in which torch computes alone, and results in order.

Two batches on one core each are done sooner than one batch on two cores after the other: threads that work on the same
product wait for each other at its end. And what a batch gives does not depend on how many cores there are: how a
product is shared among threads decides how its sums are rounded, so that the same images would have other bytes on
another machine.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result, None, None]:
    """`work(task)` for each task in order, at most `workers` at a time, each on one core.

    At most one task waits in addition to those that run and those whose results were not taken yet, `workers + 1` in
    all. When it is closed, or a task fails, or on an interrupt, nothing more starts, and what runs is waited for.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="tower")
    try:
        _use_one_core_each(pool, workers)
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _use_one_core_each(pool: ThreadPoolExecutor, workers: int) -> None:
    """Start all threads of the pool, and have torch work in them on one core."""
    threads = torch.get_num_threads()
    all_there = threading.Barrier(workers)

    def begin() -> None:
        torch.get_num_threads()  # what a thread first asks torch for sets its number; only then does ours last
        torch.set_num_threads(1)
        all_there.wait()

    for started in [pool.submit(begin) for _ in range(workers)]:
        started.result()
    # The number holds for the thread that sets it, and for every thread that begins later: for those it is put back.
    torch.set_num_threads(threads)
