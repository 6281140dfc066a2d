"""Runs stages of the data in threads of their own, a bounded number of items ahead of the stage that takes them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_POLL_S = 0.1


class _End:
    """Marks the end of the items; carries what the thread raised, if anything."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher(Generic[_Item]):
    """Iterates `items` in a background thread, at most `depth` ahead. What the thread raises is raised in the reader.

    Use it as a context manager: leaving it stops the thread, wherever it is.
    """

    def __init__(self, items: Iterable[_Item], depth: int = 4) -> None:
        self._items = items
        self._queue: queue.Queue[_Item | _End] = queue.Queue(maxsize=depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[_Item]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def __iter__(self) -> Iterator[_Item]:
        while True:
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def _fill(self) -> None:
        end = _End(None)
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except BaseException as error:  # raised in the reader
            end = _End(error)
        self._put(end)

    def _put(self, item: _Item | _End) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False


def mapped(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """Yields work(item) for each item, in their order, computed by so many threads. What work raises is raised here."""
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="stage") as pool:
        under_way: deque[Future[_Result]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(work, item))
                if len(under_way) > threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
