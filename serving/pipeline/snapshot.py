"""Keeps the snapshots of a loaded version: which one is served, which are in use, which requests wait for one.

A batch pins the snapshot that it starts with and releases it at its end, so that each answer comes from exactly one
snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, Unavailable

if TYPE_CHECKING:
    from storage.checkpoint import DenseGraph, PublishedVersion
    from storage.checkpoint.event_times import EventTimes

MAX_WAITING = 256
# Number of refusals that are remembered; beyond it the oldest is forgotten, and a request for that snapshot waits until
# its deadline.
MAX_REFUSALS = 4096
# Seconds that a batch waits for a switch at most.
_SWITCH_S = 1.0
_NAME = re.compile(r"[0-9a-f]{32}|[1-9][0-9]{0,17}\.(?:0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One state of a model: the base rows, the overlays in `mask`, and the weights of `graph`.

    Two snapshots are the same only when they are the same object.
    """

    #: 32 hex digits.
    id: str
    version: int
    #: 0 for the version itself.
    sequence: int
    #: Bit i is set where overlay i of the store is visible.
    mask: int
    graph: DenseGraph
    published_unix_ms: int
    #: The folder that it was published in.
    origin: Path
    #: The times of the rows that it was trained on since an earlier snapshot, if they are known.
    events: EventTimes | None = None
    #: The id of that snapshot; "" where it is not known.
    events_since: str = ""

    @classmethod
    def of_version(cls, published: PublishedVersion, graph: DenseGraph, mask: int = 0) -> Snapshot:
        """Returns the snapshot of a version as it was published.

        mask: the overlay that holds its rows, where they are staged as one.
        """
        manifest = published.manifest
        published_ms, events = manifest.published_unix_ms, manifest.events
        return cls(manifest.snapshot, manifest.version, 0, mask, graph, published_ms, published.path, events)

    @property
    def name(self) -> str:
        """The name that people write, such as 3.17."""
        return f"{self.version}.{self.sequence}"

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


@dataclass(eq=False, slots=True)
class _Waiter:
    text: str
    canary: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[bool]


class SnapshotHistory:
    """The snapshots of one loaded version. Thread-safe; every call but `wait_for` is short.

    max_waiting: requests that may wait for a snapshot at once.
    """

    def __init__(self, model: str, snapshot: Snapshot, *, max_waiting: int = MAX_WAITING) -> None:
        self._model = model
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._switched = threading.Condition(self._lock)
        # From this time on, by time.monotonic, batches wait for the next switch.
        self._closed_from = math.inf
        self._current = snapshot
        self._canary: tuple[Snapshot, float] | None = None
        self._shadow: Snapshot | None = None
        self._pins: dict[Snapshot, int] = {}
        # Weak: what a snapshot covers is forgotten with the snapshot.
        self._covered: WeakKeyDictionary[Snapshot, frozenset[str]] = WeakKeyDictionary()
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self._waiters: list[_Waiter] = []
        self._listeners: tuple[Callable[[Snapshot], None], ...] = ()
        self._ended = False

    @property
    def current(self) -> Snapshot:
        """The served snapshot."""
        return self._current

    @property
    def canary(self) -> tuple[Snapshot, float] | None:
        """The snapshot that a fraction of the requests is answered from, and that fraction."""
        return self._canary

    def acquire(self, canary: bool = False) -> Snapshot:
        """Pins the arm's snapshot, the current one when there is no canary; call `release` when done."""
        with self._lock:
            if time.monotonic() >= self._closed_from:
                self._switched.wait_for(lambda: self._closed_from == math.inf, _SWITCH_S)
            snapshot = self._arm(canary)
            self._pins[snapshot] = self._pins.get(snapshot, 0) + 1
        return snapshot

    def acquire_beside(self, *, shadow: bool) -> Snapshot | None:
        """Pins the shadow, or the current snapshot, for work beside the requests; None when there is none any more."""
        with self._lock:
            snapshot = self._shadow if shadow else None if self._ended else self._current
            if snapshot is not None:
                self._pins[snapshot] = self._pins.get(snapshot, 0) + 1
            return snapshot

    def release(self, snapshot: Snapshot) -> None:
        """Releases a pinned snapshot."""
        with self._lock:
            left = self._pins[snapshot] - 1
            if left:
                self._pins[snapshot] = left
                return
            del self._pins[snapshot]
            free = self._is_free(snapshot)
        if free:
            self._tell(snapshot)

    def switch(self, snapshot: Snapshot) -> None:
        """Serves `snapshot`: batches that start from now on are answered from it."""
        with self._lock:
            old, self._current = self._current, snapshot
            self._open()
            free = self._is_free(old)
        self._wake()
        if free:
            self._tell(old)

    @contextlib.contextmanager
    def closed_from(self, at: float) -> Iterator[None]:
        """Makes batches that begin after this time, by `time.monotonic`, wait for the switch within the block.

        So no batch is answered from the old snapshot after the others have switched, however late this process is.
        """
        with self._lock:
            self._closed_from = at
        try:
            yield
        finally:
            with self._lock:
                self._open()

    def set_canary(self, snapshot: Snapshot | None, fraction: float = 0.0) -> None:
        """Answers a fraction (0 to 1) of the requests from `snapshot`; None ends that."""
        with self._lock:
            old = self._canary
            self._canary = None if snapshot is None else (snapshot, fraction)
            free = old is not None and self._is_free(old[0])
        self._wake()
        if old is not None and free:
            self._tell(old[0])

    def set_shadow(self, snapshot: Snapshot | None) -> None:
        """Keeps `snapshot` for a shadow, which scores copies of requests on it; None ends that."""
        with self._lock:
            old, self._shadow = self._shadow, snapshot
            free = old is not None and self._is_free(old)
        if old is not None and free:
            self._tell(old)

    @property
    def is_pinned(self) -> bool:
        """Returns whether a batch, or work beside the requests, has pinned a snapshot."""
        return bool(self._pins)

    def in_use(self) -> frozenset[Snapshot]:
        """Returns the current snapshot, the canary's, the shadow's, and every one that a batch has pinned."""
        with self._lock:
            used = {self._current, *self._pins}
            if self._canary is not None:
                used.add(self._canary[0])
            if self._shadow is not None:
                used.add(self._shadow)
            return frozenset(used)

    def on_release(self, listener: Callable[[Snapshot], None]) -> None:
        """Calls `listener` when a snapshot is no longer `in_use`, on the thread that released it: it must be short."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def announce(self, covered: Iterable[str], snapshot: Snapshot) -> None:
        """Records the ids and names such as "3.17" that a snapshot covers: itself (always), and those it was made from.

        Call it before the switch to that snapshot, so that nobody waits for a snapshot that is served already.
        """
        names = frozenset(covered)
        with self._lock:
            self._covered[snapshot] = names
        self._wake()

    def covers(self, snapshot: Snapshot, text: str) -> bool:
        """Returns whether answers from `snapshot` are at least as new as the snapshot named by `text`."""
        if text in (snapshot.id, snapshot.name):
            return True
        with self._lock:
            return text in self._covered.get(snapshot, ())

    def require(self, snapshot: Snapshot, text: str) -> None:
        """Raises Unavailable unless answers from `snapshot` are at least as new as the snapshot named by `text`.

        Raises InvalidInput (field min_snapshot) for a text that names none.
        """
        _check_name(text)
        if not self.covers(snapshot, text):
            with self._lock:
                reason = self._refusals.get(text, "it has not come")
            raise Unavailable(f"min_snapshot: {text} is not served: {reason}; model {self._model!r} serves {snapshot}")

    def refuse(self, text: str, reason: str) -> None:
        """Makes waiters for the snapshot with this id or name fail: it is not served for now (held, quarantined)."""
        with self._lock:
            self._refusals.pop(text, None)
            self._refusals[text] = reason
            if len(self._refusals) > MAX_REFUSALS:
                self._refusals.popitem(last=False)
        self._wake()

    def accept(self, text: str) -> None:
        """Withdraws a refusal: the snapshot may be served later after all."""
        with self._lock:
            self._refusals.pop(text, None)

    async def wait_for(self, text: str, deadline_ns: int, canary: bool = False) -> bool:
        """Returns True when the arm's snapshot covers `text`, and False when the history ended before it did.

        text: 32 hex digits or "V.S". deadline_ns: on the clock of `time.monotonic_ns`. Raises DeadlineExceeded,
        Unavailable at once for a refused snapshot, Overloaded when too many requests wait, InvalidInput (field
        min_snapshot) for other texts.
        """
        _check_name(text)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(text, canary, loop, loop.create_future())
        with self._lock:
            verdict = self._verdict(text, canary)
            if verdict is None:
                if len(self._waiters) >= self._max_waiting:
                    raise Overloaded(
                        f"model {self._model!r}: {self._max_waiting} requests wait for a snapshot already; try later"
                    )
                self._waiters.append(waiter)
        if verdict is None:
            try:
                async with asyncio.timeout(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)):
                    return await waiter.future
            except TimeoutError:
                raise DeadlineExceeded(
                    f"min_snapshot: {text} did not come before the deadline; model {self._model!r} serves "
                    f"{self._arm(canary)}"
                ) from None
            finally:
                with self._lock, contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        if isinstance(verdict, Unavailable):
            raise verdict
        return verdict

    def end(self) -> None:
        """Ends the history: no snapshot will be served any more, and requests that wait are notified."""
        with self._lock:
            self._ended = True
        self._wake()

    def reopen(self) -> None:
        """Undoes `end`: snapshots may be served again."""
        with self._lock:
            self._ended = False

    def _open(self) -> None:
        if self._closed_from != math.inf:
            self._closed_from = math.inf
            self._switched.notify_all()

    def _arm(self, canary: bool) -> Snapshot:
        arm = self._canary if canary else None
        return self._current if arm is None else arm[0]

    def _is_free(self, snapshot: Snapshot) -> bool:
        kept = snapshot in (self._current, self._shadow) or (self._canary is not None and snapshot is self._canary[0])
        return not kept and snapshot not in self._pins

    def _verdict(self, text: str, canary: bool) -> bool | Unavailable | None:
        """Returns the result for requests that wait for `text`; None while there is none. Call it under the lock."""
        snapshot = self._arm(canary)
        if text in (snapshot.id, snapshot.name) or text in self._covered.get(snapshot, ()):
            return True
        reason = self._refusals.get(text)
        if reason is not None:
            return Unavailable(f"min_snapshot: {text} is not served: {reason}; model {self._model!r} serves {snapshot}")
        return False if self._ended else None

    def _wake(self) -> None:
        """Notifies every waiter for which there is a result now."""
        with self._lock:
            if not self._waiters:
                return
            told = [(waiter, self._verdict(waiter.text, waiter.canary)) for waiter in self._waiters]
            self._waiters = [waiter for waiter, verdict in told if verdict is None]
        for waiter, verdict in told:
            if verdict is not None:
                with contextlib.suppress(RuntimeError):  # its loop has closed: nobody is left to notify
                    waiter.loop.call_soon_threadsafe(_settle, waiter.future, verdict)

    def _tell(self, snapshot: Snapshot) -> None:
        for listener in self._listeners:
            listener(snapshot)


def _settle(future: asyncio.Future[bool], verdict: bool | Unavailable) -> None:
    if future.done():
        return
    if isinstance(verdict, Unavailable):
        future.set_exception(verdict)
    else:
        future.set_result(verdict)


def _check_name(text: str) -> None:
    if _NAME.fullmatch(text) is None:
        raise InvalidInput(
            "min_snapshot: expected a snapshot's 32 hex digits, or version and sequence such as 3.17, "
            f"got {text[:80]!r}",
            field="min_snapshot",
        )
