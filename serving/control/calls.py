"""Runs calls to the model repository that may take long, or wait for a lock, on a bounded number of threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from storage.errors import Overloaded

T = TypeVar("T")


class ControlCalls:
    """Runs calls for the transports, each on a thread of its own. Not thread-safe: one event loop uses it.

    A call that has begun is never given up: when its caller goes away it runs to its end, and its result is dropped.
    The threads do not keep the process alive.
    """

    def __init__(self, limit: int = 32) -> None:
        """limit: number of calls that run at a time; one more is refused."""
        self._limit = limit
        self._running = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a call; returns or raises what it does. Raises Overloaded when too many run already."""
        if self._running >= self._limit:
            raise Overloaded(f"{self._limit} control calls are running already; try later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def ended(result: T | None, error: BaseException | None) -> None:
            self._running -= 1
            if future.done():  # the caller has gone
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def work() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to notify
                loop.call_soon_threadsafe(ended, result, error)

        thread = threading.Thread(target=work, name="emberline-control", daemon=True)
        self._running += 1
        thread.start()
        return await future
