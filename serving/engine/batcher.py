"""The bounded queue of a model, and how sessions take batches from it.

One session at a time gathers a batch (it may wait for more requests); the others wait for their turn to gather. So two
sessions never compete for the same late request, and an idle one never breaks up a batch that is being gathered.
Requests of the two arms, main and canary, wait apart and never share a batch; the arm whose turn came first is taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from serving.engine.model_config import QueueSettings
from serving.engine.requests import Answers, QueuedRequest
from storage.errors import DeadlineExceeded, Overloaded, Unavailable


class RequestQueue:
    """First in, first out within an arm. Every method may be called from any thread."""

    def __init__(self, model: str, settings: QueueSettings, max_batch_size: int) -> None:
        self._model = model
        self._settings = settings
        self._limit = max_batch_size
        self._main: deque[QueuedRequest] = deque()
        self._canary: deque[QueuedRequest] = deque()
        self._turn = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False

    def __len__(self) -> int:
        return len(self._main) + len(self._canary)

    def put(self, request: QueuedRequest) -> None:
        """Adds a request. Raises Overloaded when the queue is full, Unavailable when it is closed."""
        with self._changed:
            if self._closed:
                raise Unavailable(f"model {self._model!r} is shutting down")
            if len(self) >= self._settings.max_queue_size:
                raise Overloaded(
                    f"model {self._model!r}: exceeds maximum queue size of {self._settings.max_queue_size}; try later"
                )
            (self._canary if request.canary else self._main).append(request)
            self._changed.notify()

    def discard(self, request: QueuedRequest) -> bool:
        """Takes a request out again, freeing its place; False when a session has it already."""
        with self._changed:
            request.abandoned = True
            try:
                (self._canary if request.canary else self._main).remove(request)
            except ValueError:
                return False
            return True

    def take(self) -> list[QueuedRequest] | None:
        """The next batch; waits for one. None when the queue is closed and empty."""
        with self._turn, self._changed:
            batch: list[QueuedRequest] = []
            size = 0
            arm = self._main
            while True:
                if not batch:
                    arm = self._first_arm()
                size, full = self._gather(arm, batch, size)
                if not batch:
                    if not len(self):
                        if self._closed:
                            return None
                        self._changed.wait()
                    continue
                if full or self._closed or self._settings.delay_us == 0 or size in self._settings.preferred:
                    return batch
                if self._canary if arm is self._main else self._main:
                    return batch  # the other arm must not wait for this one's company
                until_ns = batch[0].arrived_ns + self._settings.delay_us * 1000
                left_ns = until_ns - time.monotonic_ns()
                # Nobody's deadline may pass while company is waited for.
                if left_ns <= 0 or any(0 < request.deadline_ns <= until_ns for request in batch):
                    return batch
                self._changed.wait(left_ns / 1e9)

    def close(self) -> list[QueuedRequest]:
        """No more requests from now on; those that wait are still taken. Returns what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return [*self._main, *self._canary]

    def clear(self) -> list[QueuedRequest]:
        """Takes everything out, to be refused."""
        with self._changed:
            left = [*self._main, *self._canary]
            self._main.clear()
            self._canary.clear()
            return left

    def _first_arm(self) -> deque[QueuedRequest]:
        """The arm whose first request has waited longest."""
        if not self._canary:
            return self._main
        if not self._main:
            return self._canary
        return self._main if self._main[0].arrived_ns <= self._canary[0].arrived_ns else self._canary

    def _gather(self, waiting: deque[QueuedRequest], batch: list[QueuedRequest], size: int) -> tuple[int, bool]:
        """Moves what fits of an arm into `batch`; returns its size and whether nothing more will fit."""
        now_ns = time.monotonic_ns()
        stop = self._stop_at(waiting, size)
        expired = Answers()
        full = False
        while waiting and not full:
            request = waiting[0]
            if request.abandoned:
                waiting.popleft()
            elif request.deadline_ns and request.deadline_ns <= now_ns:
                expired.add(waiting.popleft(), DeadlineExceeded("request timeout expired in the queue"))
            elif batch and size + request.batch > stop:
                full = True
            else:
                batch.append(waiting.popleft())
                size += request.batch
                full = size >= stop or not self._settings.merge
        expired.send()
        return size, full

    def _stop_at(self, waiting: deque[QueuedRequest], size: int) -> int:
        """How large the batch may grow: the largest preferred size that what waits can fill, else the limit."""
        preferred = self._settings.preferred
        if not preferred:
            return self._limit
        fill = size + sum(request.batch for request in waiting)
        return max((entry for entry in preferred if entry <= fill), default=preferred[-1])
