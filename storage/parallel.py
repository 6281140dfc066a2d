"""Works on several items at once and returns the results in their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

#: Called before each item of work that others should not notice; it returns when a core is free, or after a while.
Pace = Callable[[], None]

T = TypeVar("T")
R = TypeVar("R")

# Each item that is being worked on takes memory; with more threads than this the disk is the limit.
_MOST_THREADS = 8


def load_threads() -> int:
    """Returns the number of threads that a load may use: one for each core of this process, within bounds."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0))))


def map_paced(work: Callable[[T], R], items: Iterable[T], pace: Pace | None) -> Iterator[R]:
    """Yields work(item) of each item in order: on all threads of a load, or with `pace` one by one in the caller's."""
    if pace is None:
        yield from map_in_order(work, items, load_threads())
        return
    for item in items:
        pace()
        yield work(item)


def map_in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yields work(item) of each item in order, working on at most `threads` items at once, and none further ahead.

    An error is raised in place of its result. With one thread everything runs in the caller's own.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    left = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="emberline-load") as pool:
        coming: deque[Future[R]] = deque(pool.submit(work, item) for item in islice(left, threads))
        try:
            while coming:
                result = coming.popleft().result()
                coming.extend(pool.submit(work, item) for item in islice(left, 1))
                yield result
        finally:
            for future in coming:
                future.cancel()
