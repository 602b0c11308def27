"""Work in threads, with the results in order and a few of them ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_ahead(
    pool: ThreadPoolExecutor, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Generator[Result, None, None]:
    """`work(task)` for each task in order. At most `ahead` wait, run or have a result that was not taken, and one more.

    At the end, when it is closed, or on an error or interrupt, nothing more starts, what runs is waited for, and the
    pool ends.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
