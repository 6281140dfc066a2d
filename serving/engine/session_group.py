"""Runs the sessions of a version: threads over one copy of weights and tables, added and removed while they serve.

Where every session may take any request, all take from one queue, so the session that is free first gets the request:
that one is the least loaded. Where requests are distributed in turn or by key, each session has a queue of its own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from serving.engine.batcher import RequestQueue
from serving.engine.requests import QueuedRequest, ReplacedError
from serving.engine.session import Session, SessionParts
from serving.model_config.instance_groups import Place, share
from serving.model_config.queue_settings import LevelSettings, QueueSettings
from serving.pipeline.host import ScoringPipeline
from storage.errors import DeviceError, DeviceLost

logger = logging.getLogger("emberline.serving")

Pick = Literal["least_loaded", "round_robin", "key"]


class SessionGroup:
    """Starts and ends the sessions of one version, and gives each request to one of their queues. Thread-safe."""

    def __init__(
        self,
        name: str,
        label: str,
        settings: QueueSettings,
        max_batch_size: int,
        pick: Pick,
        parts: SessionParts,
        make_pipeline: Callable[[Place], ScoringPipeline],
        places: Sequence[Place] = (None,),
    ) -> None:
        """Creates a group without sessions; `resize` starts them.

        name: the model's name, for messages. label: the prefix of the sessions' names; a number follows it.
        places: where the sessions run, as configured; another number of sessions is spread in the same proportion.
        """
        self.pick = pick
        self._name = name
        self._label = label
        self._settings = settings
        self._max_batch_size = max_batch_size
        self._parts = parts
        self._make_pipeline = make_pipeline
        self._places = tuple(places)
        self._tried: Place = None
        self._resizing = threading.Lock()
        self._numbers = itertools.count()
        self._turns = itertools.count()
        # Replaced as a whole, so that a request reads them without a lock.
        self._queues: tuple[RequestQueue, ...] = ()
        self._on_queues: Callable[[tuple[RequestQueue, ...]], None] = lambda queues: None
        self._sessions: list[Session] = []
        self._leaving: list[Session] = []
        # Those of sessions that have ended: lookups, and levels of chains.
        self._counted_before: tuple[np.ndarray, np.ndarray] | None = None
        self.is_closed = False

    def __len__(self) -> int:
        """Returns the number of sessions."""
        return sum(queue.sessions for queue in self._queues)

    @property
    def queued(self) -> int:
        """Requests that wait for a session."""
        return sum(map(len, self._queues))

    @property
    def sessions(self) -> list[Session]:
        """Returns the sessions that are at work, also those that are about to end."""
        return [session for session in self._every() if not session.is_over]

    def counted(self) -> np.ndarray:
        """Returns the lookups that all its pipelines counted so far, as in Pipeline.counted."""
        return self._counted()[0]

    def levels_counted(self) -> np.ndarray:
        """Returns the levels of chains that all its pipelines counted so far, as in LevelCounts.counted."""
        return self._counted()[1]

    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        with self._resizing:
            parts = [(session.counted, session.levels_counted) for session in self._every()]
            if self._counted_before is not None:
                parts.append(self._counted_before)
            lookups, levels = zip(*parts, strict=True)
            return np.sum(lookups, 0), np.sum(levels, 0)

    def check(self) -> None:
        """Raises Overloaded when no request would be taken now; see RequestQueue.check."""
        queues = self._queues
        for queue in queues:
            if not len(queue):
                return
        queues[-1].check()

    def put(self, request: QueuedRequest) -> None:
        """Hands a request to a session. Raises Overloaded, or ReplacedError when the group is closed."""
        while True:
            queues = self._queues
            request.queue = queue = self._choose(queues, request.routing_key)
            try:
                queue.put(request)
            except ReplacedError:
                if queues is self._queues:
                    raise
                continue  # the queue was replaced just now
            return

    def resize(self, count: int) -> None:
        """Starts sessions, or ends some after the batch that they work on. count: 1 or more.

        Raises DeviceError when a GPU has no memory left for them; the sessions that could be started stay.
        """
        with self._resizing:
            if self.is_closed:
                return
            self._reap()
            while True:
                try:
                    if self.pick == "least_loaded":
                        self._resize_shared(count)
                    else:
                        self._resize_own(count)
                except DeviceLost:
                    left = tuple(place for place in self._places if place != self._tried)
                    if not left:
                        raise
                    self._places = left  # no session can run at the lost place any more
                    continue
                return

    def watch_queues(self, on_queues: Callable[[tuple[RequestQueue, ...]], None]) -> None:
        """Calls `on_queues` with the queues now, and with those that replace them before these get requests."""
        with self._resizing:
            self._on_queues = on_queues
            on_queues(self._queues)

    def wait_warm(self) -> None:
        """Waits until the sessions are ready for requests. Raises ConfigError when one could not warm up."""
        for session in self._every():
            session.wait_warm()

    def close(self) -> None:
        """Refuses further requests; those that wait are still answered."""
        with self._resizing:
            self.is_closed = True
            for queue in self._queues:
                queue.close()

    def join(self, timeout_s: float | None) -> bool:
        """Waits for all sessions to end, without a limit for None; returns False when one is still at work then."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            session.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for session in self._every()
        )

    def clear(self) -> list[QueuedRequest]:
        """Removes and returns the requests that still wait; the caller refuses them."""
        queues = dict.fromkeys((*self._queues, *(session.queue for session in self._every())))
        return [request for queue in queues for request in queue.clear()]

    def _replace_queues(self, queues: tuple[RequestQueue, ...]) -> None:
        self._on_queues(queues)
        self._queues = queues

    def _every(self) -> list[Session]:
        """Returns all sessions, also those that have ended and were not removed yet."""
        return [*self._sessions, *self._leaving]

    def _choose(self, queues: tuple[RequestQueue, ...], key: str) -> RequestQueue:
        if len(queues) == 1:
            return queues[0]
        if self.pick == "key" and key:
            return queues[zlib.crc32(key.encode("utf-8", "surrogatepass")) % len(queues)]
        if self.pick == "key":
            return min(queues, key=len)
        return queues[next(self._turns) % len(queues)]

    def _resize_shared(self, count: int) -> None:
        if not self._queues:
            self._replace_queues((RequestQueue(self._name, self._settings, self._max_batch_size, sessions=0),))
        queue = self._queues[0]
        if count < queue.sessions:
            queue.leave(queue.sessions - count)
            return
        there = Counter(session.place for session in self._sessions if not session.is_over)
        for place in share(self._places, count):
            if there[place]:
                there[place] -= 1
            elif queue.sessions < count:
                self._start(queue, place)
                queue.enter()
        while queue.sessions < count:  # some sessions counted above are about to end
            self._start(queue, self._places[queue.sessions % len(self._places)])
            queue.enter()

    def _resize_own(self, count: int) -> None:
        # All sessions are new: their number decides which request goes to which. The old ones empty their queues.
        old = self._queues
        settings = _divided(self._settings, count)
        queues = tuple(RequestQueue(self._name, settings, self._max_batch_size) for _ in range(count))
        before, self._sessions = self._sessions, []
        try:
            for queue, place in zip(queues, share(self._places, count), strict=True):
                self._start(queue, place)
        except BaseException:
            for queue in queues:
                queue.close()
            self._leaving += self._sessions
            self._sessions = before
            raise
        self._replace_queues(queues)
        self._leaving += before
        for queue in old:
            queue.close()

    def _lost(self, place: Place) -> None:
        # Runs on a thread of its own: the session's thread goes on, or ends, while others are started.
        threading.Thread(target=self._leave, args=(place,), name=f"{self._label}-leaves", daemon=True).start()

    def _leave(self, place: Place) -> None:
        """Replaces the sessions at a lost place by as many at the other places."""
        with self._resizing:
            left = tuple(other for other in self._places if other != place)
            if self.is_closed or not left or len(left) == len(self._places):
                return
            count = len(self)
            self._places = left
            self._reap()
            try:
                if self.pick != "least_loaded":
                    self._resize_own(count)
                    return
                queue = self._queues[0]
                # The lost sessions end when they next take a batch; the new ones take their share from now on.
                lost = sum(session.place == place and not session.is_over for session in self._sessions)
                for number in range(max(lost, count + 1 - len(self))):
                    self._start(queue, left[number % len(left)])
                    queue.enter()
            except DeviceError as error:
                logger.error("%s: fewer sessions than before: %s", self._label, error)

    def _start(self, queue: RequestQueue, place: Place) -> None:
        self._tried = place
        name = f"{self._label}#{next(self._numbers)}"
        session = Session(name, queue, self._make_pipeline(place), self._parts, place, self._lost)
        session.start()
        self._sessions.append(session)

    def _reap(self) -> None:
        """Removes the sessions that have ended, and keeps their counts."""
        for line in (self._sessions, self._leaving):
            for session in [session for session in line if session.is_over]:
                line.remove(session)
                before, own = self._counted_before, (session.counted, session.levels_counted)
                if before is None:
                    self._counted_before = own[0].copy(), own[1].copy()
                else:
                    self._counted_before = before[0] + own[0], before[1] + own[1]


def _divided(settings: QueueSettings, count: int) -> QueueSettings:
    """Returns settings for one of `count` queues, so that together they have the same bounds."""

    def part(level: LevelSettings) -> LevelSettings:
        return replace(level, max_size=-(-level.max_size // count))

    return replace(settings, levels=tuple(map(part, settings.levels)))
