"""Work on several items at once, given back in their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Memory is taken for each item that is worked on; past this the disk is what is waited for.
_MOST_THREADS = 8


def load_threads() -> int:
    """How many threads a load may use: those of the cores of this process, within bounds."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0))))


def map_in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """work(item) of each item, in order, at most `threads` of them at once, none further ahead than that.

    An error comes where its result would. With one thread everything happens in the caller's own.
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
