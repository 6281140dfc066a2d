"""Implements the bounded queue of a session group, from which sessions take batches.

One session at a time gathers a batch (it may wait for more requests); the others wait for their turn to gather. So two
sessions never compete for the same late request, and an idle one never breaks up a batch that is being gathered.
Requests of the two arms, main and canary, wait apart and never share a batch; the arm whose request has waited longest
is taken.
"""

from __future__ import annotations

import threading
import time

from serving.engine.requests import Answers, QueuedRequest, ReplacedError
from serving.engine.service_time import ServiceTime
from serving.engine.waiting import WaitingRequests
from serving.model_config.queue_settings import QueueSettings
from storage.errors import DeadlineExceeded, Overloaded


class RequestQueue:
    """Orders requests by priority, and first in, first out within a level of an arm. Thread-safe.

    `put` refuses a request that would pass its deadline by estimate; a request whose deadline has passed is no longer
    taken. A request that was taken is answered. Its sink may time it out earlier, while it waits: see `discard`.

    sessions: the number of sessions that take from it, for the estimate of a wait.
    """

    def __init__(self, model: str, settings: QueueSettings, max_batch_size: int, sessions: int = 1) -> None:
        self.sessions = sessions
        self.service_time = ServiceTime()
        self._model = model
        self._settings = settings
        self._limit = max_batch_size
        self._least_room = min(level.max_size for level in settings.levels)
        self._main = WaitingRequests(len(settings.levels))
        self._canary = WaitingRequests(len(settings.levels))
        self._turn = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._leaving = 0

    def __len__(self) -> int:
        return self._main.count + self._canary.count

    def put(self, request: QueuedRequest) -> None:
        """Adds a request.

        Raises Overloaded when its level is full, or when it would wait past its deadline or the model's bound by
        estimate; ReplacedError when the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise ReplacedError
            self._check_room(request.level)
            if request.deadline_ns or self._settings.max_wait_us:
                self._check_wait(request.level, request.deadline_ns)
            (self._canary if request.canary else self._main).add(request)
            self._changed.notify()

    def check(self) -> None:
        """Raises Overloaded when no request of any level would be accepted now, so that no work is spent on one."""
        # Checked without the lock where that is enough, because this runs for every request.
        waiting = len(self)
        if not waiting or (waiting < self._least_room and not self._settings.max_wait_us):
            return
        with self._changed:
            levels = range(len(self._settings.levels))
            for level in levels:
                try:
                    self._check_room(level)
                    self._check_wait(level, 0)
                except Overloaded:
                    if level == levels[-1]:
                        raise
                else:
                    return

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request and frees its place; returns False when a session already has it."""
        with self._changed:
            request.abandoned = True
            return (self._canary if request.canary else self._main).discard(request)

    def take(self) -> list[QueuedRequest] | None:
        """Waits for the next batch and returns it; None when the session is to end.

        A session ends when the queue is closed and empty, or after `leave`.
        """
        with self._turn, self._changed:
            batch: list[QueuedRequest] = []
            size = 0
            arm = self._main
            while True:
                if not batch:
                    if self._leaving:
                        self._leaving -= 1
                        return None
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
                if (self._canary if arm is self._main else self._main).count:
                    return batch  # the other arm must not wait while this one gathers more requests
                until_ns = batch[0].arrived_ns + self._settings.delay_us * 1000
                left_ns = until_ns - time.monotonic_ns()
                # No deadline may pass while the batch waits for more requests.
                if left_ns <= 0 or any(0 < request.deadline_ns <= until_ns for request in batch):
                    return batch
                self._changed.wait(left_ns / 1e9)

    def leave(self, sessions: int) -> None:
        """Makes the next `sessions` calls of `take` return None, so that as many sessions end."""
        with self._changed:
            self._leaving += sessions
            self.sessions -= sessions
            self._changed.notify_all()

    def retire(self) -> bool:
        """Lets the calling session end if others take from the queue; returns False for the last one: it must stay."""
        with self._changed:
            if self.sessions <= 1:
                return False
            self.sessions -= 1
            return True

    def close(self) -> list[QueuedRequest]:
        """Refuses requests from now on and returns those that wait; sessions still take these."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return [*self._main.all(), *self._canary.all()]

    def clear(self) -> list[QueuedRequest]:
        """Removes and returns all requests; the caller refuses them."""
        with self._changed:
            left = [*self._main.all(), *self._canary.all()]
            self._main = WaitingRequests(len(self._settings.levels))
            self._canary = WaitingRequests(len(self._settings.levels))
            return left

    def _check_room(self, level: int) -> None:
        limit = self._settings.levels[level].max_size
        if self._main.size(level) + self._canary.size(level) >= limit:
            raise Overloaded(f"model {self._model!r}: exceeds maximum queue size of {limit}; try later")

    def _check_wait(self, level: int, deadline_ns: int) -> None:
        """Raises Overloaded when the rows that wait would take too long.

        Only waiting rows count, so an idle model never refuses a request, however slow its last batch was.
        """
        rows = self._main.rows_before(level) + self._canary.rows_before(level)
        if not rows:
            return
        wait_ns = self.service_time.wait_ns(rows, self.sessions)
        bound_ns = self._settings.max_wait_us * 1000
        if bound_ns and wait_ns > bound_ns:
            raise Overloaded(
                f"model {self._model!r}: a request would wait {wait_ns / 1e6:.0f} ms, at most {bound_ns / 1e6:g} ms "
                "are allowed (max_wait_ms); try later"
            )
        if deadline_ns and time.monotonic_ns() + wait_ns > deadline_ns:
            raise Overloaded(
                f"model {self._model!r}: the request would wait {wait_ns / 1e6:.0f} ms, past its deadline; try later"
            )

    def _first_arm(self) -> WaitingRequests:
        """Returns the arm with the request that has waited longest."""
        if not self._canary.count:
            return self._main
        if not self._main.count:
            return self._canary
        return self._main if self._main.oldest_ns() <= self._canary.oldest_ns() else self._canary

    def _gather(self, waiting: WaitingRequests, batch: list[QueuedRequest], size: int) -> tuple[int, bool]:
        """Moves the requests of an arm that fit into `batch`; returns its size and whether nothing more will fit."""
        now_ns = time.monotonic_ns()
        stop = self._stop_at(waiting, size)
        expired: Answers | None = None
        full = False
        while not full and (request := waiting.first(now_ns)) is not None:
            if request.abandoned:
                waiting.pop(request)
            elif request.deadline_ns and request.deadline_ns <= now_ns:
                expired = expired or Answers()
                expired.add(waiting.pop(request), DeadlineExceeded("request timeout expired in the queue"))
            elif batch and size + request.batch > stop:
                full = True
            else:
                batch.append(waiting.pop(request))
                size += request.batch
                full = size >= stop or not self._settings.merge
        if expired is not None:
            expired.send()
        return size, full

    def _stop_at(self, waiting: WaitingRequests, size: int) -> int:
        """Returns how large the batch may grow.

        That is the largest preferred size that the waiting rows can fill, else the last preferred size; without
        preferred sizes, the limit.
        """
        preferred = self._settings.preferred
        if not preferred:
            return self._limit
        fill = size + waiting.rows
        return max((entry for entry in preferred if entry <= fill), default=preferred[-1])
