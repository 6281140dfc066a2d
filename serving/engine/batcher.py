"""The bounded queue of a session group, from which sessions take batches.

One session at a time gathers a batch (it may wait for more requests); the others wait for their turn to gather. So two
sessions never compete for the same late request, and an idle one never breaks up a batch that is being gathered.
Requests of the two arms, main and canary, wait apart and never share a batch; the arm whose request has waited longest
is taken.

The queue itself is native: the native HTTP server adds requests to it without the interpreter, and a session takes
them once a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from serving._front import Queue, RequestBatch, Ticket
from serving.engine.requests import Answers, QueuedRequest, ReplacedError, request_expired
from serving.model_config.queue_settings import QueueSettings
from serving.observing.watchers import WATCHERS
from storage.errors import Overloaded

logger = logging.getLogger("emberline.serving")

Join = Callable[[RequestBatch], QueuedRequest]
_CLOSED = "closed"


def _no_join(batch: RequestBatch) -> QueuedRequest:
    raise AssertionError("no server adds requests to this queue")


class RequestQueue:
    """Orders requests by priority, and first in, first out within a level of an arm. Thread-safe.

    `put` refuses a request that would pass its deadline by estimate; a request whose deadline has passed is no longer
    taken. A request that was taken is answered. Its sink may time it out earlier, while it waits: see `discard`.
    """

    def __init__(self, model: str, settings: QueueSettings, max_batch_size: int, sessions: int = 1) -> None:
        """sessions: the number of sessions that take from it, for the estimate of a wait."""
        self.settings = settings
        #: The queue itself, to which the native server adds requests.
        self.native = Queue(
            f"model {model!r}",
            max_batch_size,
            settings.merge,
            list(settings.preferred),
            settings.delay_us * 1000,
            [level.max_size for level in settings.levels],
            settings.max_wait_us * 1000,
            sessions,
        )
        #: Makes one request of several that the native server has read.
        self.join: Join = _no_join

    def __len__(self) -> int:
        return len(self.native)

    @property
    def sessions(self) -> int:
        """Returns the number of sessions that take from it."""
        return self.native.sessions

    def enter(self) -> None:
        """Counts one more session."""
        self.native.enter()

    def put(self, request: QueuedRequest) -> None:
        """Adds a request.

        Raises Overloaded when its level is full, or when it would wait past its deadline or the model's bound by
        estimate; ReplacedError when the queue is closed.
        """
        request.ticket = ticket = Ticket()
        refused = self.native.put(
            request,
            request.batch,
            request.arrived_ns,
            request.deadline_ns,
            request.delay_at_ns,
            request.level,
            request.canary,
            ticket,
        )
        if refused:
            raise ReplacedError if refused == _CLOSED else Overloaded(refused)

    def check(self) -> None:
        """Raises Overloaded when no request of any level would be accepted now, so that no work is spent on one."""
        refused = self.native.check()
        if refused:
            raise Overloaded(refused)

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request and frees its place; returns False when a session already has it."""
        request.abandoned = True
        return request.ticket is not None and self.native.discard(request.ticket)

    def take(self) -> list[QueuedRequest] | None:
        """Waits for the next batch and returns it; None when the session is to end.

        A session ends when the queue is closed and empty, or after `leave`.
        """
        while (taken := self.native.take()) is not None:
            requests, batches, expired = taken
            taken_ns = time.monotonic_ns() if WATCHERS.is_on else 0
            if expired:
                late = Answers()
                for request in expired:
                    late.add(request, request_expired())
                late.send()
            batch = [*requests, *self._joined(batches)]
            if batch:
                if taken_ns:
                    for request in batch:
                        request.taken_ns = taken_ns
                return batch
        return None

    def leave(self, sessions: int) -> None:
        """Makes the next `sessions` calls of `take` return None, so that as many sessions end."""
        self.native.leave(sessions)

    def retire(self) -> bool:
        """Lets the calling session end if others take from the queue; returns False for the last one: it must stay."""
        return self.native.retire()

    def close(self) -> None:
        """Refuses requests from now on; sessions still take those that wait."""
        self.native.close()

    def clear(self) -> list[QueuedRequest]:
        """Removes and returns all requests; the caller refuses them."""
        requests, batches = self.native.clear()
        return [*requests, *self._joined(batches)]

    def worked(self, rows: int, ns: int) -> None:
        """Records that a session worked on a batch of `rows` rows for `ns` nanoseconds, for the estimate of a wait."""
        self.native.worked(rows, ns)

    def wait_ns(self, rows: int) -> int:
        """Returns how many nanoseconds the sessions will work on `rows` rows; 0 before the first batch."""
        return self.native.wait_ns(rows)

    def _joined(self, batches: list[RequestBatch]) -> list[QueuedRequest]:
        joined = []
        for batch in batches:
            try:
                joined.append(self.join(batch))
            except Exception:  # a bug must not end the session
                logger.exception("requests could not be joined; they are answered one by one")
                batch.hand_over()
        return joined
