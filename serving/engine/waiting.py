"""Requests that wait, by priority level: first in, first out within a level."""

from __future__ import annotations

from collections import deque

from serving.engine.requests import QueuedRequest


class WaitingRequests:
    """Keeps the requests of one arm in the order of their turns. Not thread-safe: the owning queue holds a lock."""

    def __init__(self, levels: int) -> None:
        # By level: requests in time, and those that waited longer than the level's timeout, where that delays.
        self._levels: list[tuple[deque[QueuedRequest], deque[QueuedRequest]]] = [
            (deque(), deque()) for _ in range(levels)
        ]
        self._rows = [0] * levels
        # The number of requests that wait.
        self.count = 0

    @property
    def rows(self) -> int:
        """Returns the rows of all requests that wait."""
        return sum(self._rows)

    def size(self, level: int) -> int:
        """Returns the number of requests that wait in a level."""
        return sum(map(len, self._levels[level]))

    def rows_before(self, level: int) -> int:
        """Returns the rows that are taken before a request that is added to this level now."""
        return sum(self._rows[: level + 1])

    def add(self, request: QueuedRequest) -> None:
        """Puts a request at the end of its level."""
        self._levels[request.level][0].append(request)
        self._note(request, 1)

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request; returns False when it does not wait here."""
        for line in self._levels[request.level]:
            # Checked first, because the error of `remove` would format the whole request with all its values.
            if request in line:
                line.remove(request)
                self._note(request, -1)
                return True
        return False

    def first(self, now_ns: int) -> QueuedRequest | None:
        """Returns the request whose turn it is; None when none waits."""
        for timely, delayed in self._levels:
            while timely and 0 < timely[0].delay_at_ns <= now_ns:
                delayed.append(timely.popleft())
            if timely:
                return timely[0]
            if delayed:
                return delayed[0]
        return None

    def pop(self, request: QueuedRequest) -> QueuedRequest:
        """Removes and returns the request that `first` just returned."""
        timely, delayed = self._levels[request.level]
        (timely if timely and timely[0] is request else delayed).popleft()
        self._note(request, -1)
        return request

    def oldest_ns(self) -> int:
        """Returns the arrival time of the request that has waited longest; 0 when none waits."""
        heads = [line[0].arrived_ns for lines in self._levels for line in lines if line]
        return min(heads, default=0)

    def all(self) -> list[QueuedRequest]:
        """Returns every request, in the order of their turns."""
        return [request for lines in self._levels for line in lines for request in line]

    def _note(self, request: QueuedRequest, change: int) -> None:
        self._rows[request.level] += change * request.batch
        self.count += change
