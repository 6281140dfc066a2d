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


class _End:
    """Marks the end of the items; carries what the thread raised, if anything."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher(Generic[_Item]):
    """Iterates `items` in a background thread, at most `depth` ahead. What the thread raises is raised in the reader.

    An item is begun only when there is room for it, so with a depth of 1 there are never more than two of them: one
    that the reader works on, and the next. Use it as a context manager: leaving it stops the thread, wherever it is.
    """

    def __init__(self, items: Iterable[_Item], depth: int = 4) -> None:
        self._items = items
        self._queue: queue.SimpleQueue[_Item | _End] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[_Item]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._room.release()
        self._thread.join()

    def __iter__(self) -> Iterator[_Item]:
        while True:
            item = self._queue.get()
            self._room.release()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
            del item  # so that its memory is free before the next one is begun

    def _fill(self) -> None:
        end = _End(None)
        try:
            items = iter(self._items)
            while self._has_room():
                self._queue.put(next(items))
        except StopIteration:
            pass
        except BaseException as error:  # raised in the reader
            end = _End(error)
        self._queue.put(end)

    def _has_room(self) -> bool:
        self._room.acquire()
        return not self._stopped.is_set()


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
