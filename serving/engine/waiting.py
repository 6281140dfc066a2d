"""Requests that wait, by priority level: first in, first out within a level."""

from __future__ import annotations

from collections import deque

from serving.engine.requests import QueuedRequest


class WaitingRequests:
    """Not thread-safe: the queue that owns it has the lock."""

    def __init__(self, levels: int) -> None:
        # Of each level: those in time, and those that have waited longer than the level's timeout, where that delays.
        self._levels: list[tuple[deque[QueuedRequest], deque[QueuedRequest]]] = [
            (deque(), deque()) for _ in range(levels)
        ]
        self._rows = [0] * levels
        # Requests that wait.
        self.count = 0

    @property
    def rows(self) -> int:
        """Rows of all that wait."""
        return sum(self._rows)

    def size(self, level: int) -> int:
        """Requests that wait in a level."""
        return sum(map(len, self._levels[level]))

    def rows_before(self, level: int) -> int:
        """Rows that are taken before a request that comes to this level now."""
        return sum(self._rows[: level + 1])

    def add(self, request: QueuedRequest) -> None:
        """Puts a request at the end of its level."""
        self._levels[request.level][0].append(request)
        self._note(request, 1)

    def discard(self, request: QueuedRequest) -> bool:
        """Takes a request out; False when it does not wait here."""
        for line in self._levels[request.level]:
            # Asked first: the error of `remove` would write down the whole request, with all its values.
            if request in line:
                line.remove(request)
                self._note(request, -1)
                return True
        return False

    def first(self, now_ns: int) -> QueuedRequest | None:
        """The request whose turn it is; None when none waits."""
        for timely, delayed in self._levels:
            while timely and 0 < timely[0].delay_at_ns <= now_ns:
                delayed.append(timely.popleft())
            if timely:
                return timely[0]
            if delayed:
                return delayed[0]
        return None

    def pop(self, request: QueuedRequest) -> QueuedRequest:
        """Takes out what `first` just gave."""
        timely, delayed = self._levels[request.level]
        (timely if timely and timely[0] is request else delayed).popleft()
        self._note(request, -1)
        return request

    def oldest_ns(self) -> int:
        """When the request came that has waited longest; 0 when none waits."""
        heads = [line[0].arrived_ns for lines in self._levels for line in lines if line]
        return min(heads, default=0)

    def all(self) -> list[QueuedRequest]:
        """Every request, in the order of their turns."""
        return [request for lines in self._levels for line in lines for request in line]

    def _note(self, request: QueuedRequest, change: int) -> None:
        self._rows[request.level] += change * request.batch
        self.count += change
