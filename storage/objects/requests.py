"""Sends requests to an object store: repeats those whose connection broke, and gives up those that nobody waits for.

obstore retries by itself what a store refuses for a moment (5xx), but neither conditional writes nor bodies that were
cut off. Requests run on one event loop of the process, so that a thread that waits for one can be interrupted.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

# What obstore says when a connection broke.
_BROKEN = "HTTP error: "
# In what obstore adds for its developers: the words of the system for why a connection broke, or that time ran out.
_CAUSE = re.compile(r'\b(?:message|error): "([^"\\]*)"')
_TIMED_OUT = "source: TimedOut"
# The address where clouds give credentials to their machines, which is asked when the environment has none.
_METADATA = "//169.254.169.254"
_FIRST_WAIT_S = 0.1
# Seconds between looks whether a request is to be given up.
_LOOK_S = 0.1
_WORDS = 300


class Stopped(Exception):  # noqa: N818 - asked for
    """A request was given up because its owner stops."""


class FailedRequest(Exception):  # noqa: N818 - of this package; callers see ObjectStoreError
    """A request that did not succeed, and why, on one line without secrets."""


@dataclass
class Traffic:
    """Counts of what was asked of a store by this process. Thread-safe."""

    requests: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, **more: int) -> None:
        """Adds to the counts that are named."""
        with self._lock:
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)


class Requests:
    """The requests to one store. Thread-safe."""

    def __init__(self, traffic: Traffic, retry_s: float, stop: threading.Event | None) -> None:
        self.traffic = traffic
        self._retry_s = retry_s
        self._stop = stop or threading.Event()

    def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """Returns what the store answers; asks again, for `retry_s`, when the connection broke before it did.

        Conditional writes are repeated too, so a second try may be refused because of the first: every caller looks
        whether what is there is its own. Raises FileNotFoundError, obstore's AlreadyExistsError, NotModifiedError and
        PreconditionError; Stopped; FailedRequest for the rest.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError

        give_up_at = time.monotonic() + self._retry_s
        wait_s = _FIRST_WAIT_S
        while True:
            self.traffic.count(requests=1)
            try:
                return self._result(request)
            except (FileNotFoundError, AlreadyExistsError, NotModifiedError, PreconditionError):
                raise
            except (BaseError, OSError, NotImplementedError, ValueError) as error:
                if _BROKEN not in str(error) or time.monotonic() + wait_s > give_up_at:
                    self.traffic.count(failures=1)
                    raise FailedRequest(reason_of(error)) from None
            if self._stop.wait(wait_s):
                raise Stopped
            wait_s *= 2

    def _result(self, request: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await request()

        future: Future[T] = asyncio.run_coroutine_threadsafe(run(), _loop())
        try:
            while not future.done():
                if self._stop.is_set():
                    raise Stopped
                wait((future,), _LOOK_S)
        except BaseException:
            future.cancel()
            raise
        return future.result()


def reason_of(error: Exception) -> str:
    """Returns what a store says of a failure, on one line, without queries, which may hold a signature."""
    text, _, details = str(error).partition("Debug source:")
    if _BROKEN in text:
        cause = _CAUSE.search(details)
        text = text.rstrip() + (f": {cause[1]}" if cause else ": no answer in time" if _TIMED_OUT in details else "")
    message = re.search(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", text, re.DOTALL)
    text = re.sub(r"\?\S*", "", text.partition("<?xml")[0])
    text = " ".join(text.split())
    request = re.search(r"Error performing \w+ (\w+://[^/\s]*)\S* in .*? - (.*)", text)
    if request is not None:
        text = f"{request[2]} ({request[1]})"
    if _METADATA in text:
        text = f"there are no credentials: the environment has none, nor does the machine's metadata service: {text}"
    if message is not None:
        text += f" {message[1]}" + (f" ({message[2].strip()})" if message[2] else "")
    return text[:_WORDS] or type(error).__name__


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_opening = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of this process, which a thread of its own runs; a forked process gets another one."""
    with _opening:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="emberline-objects", daemon=True).start()
        return loop
