"""Defines a request inside the engine, from when it is queued until its answer is delivered to its transport."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from storage.errors import DeadlineExceeded

if TYPE_CHECKING:
    from serving._front import BatchStages, RequestBatch, Ticket
    from serving.pipeline.snapshot import Snapshot
    from serving.pipeline.user_side import SidedFeatures
    from storage.features import Column, FeatureBatch


logger = logging.getLogger("emberline.serving")


@dataclass(slots=True)
class InferenceResult:
    """Holds the answer to one request."""

    #: All outputs of the model, in order; all values are finite.
    outputs: list[np.ndarray]
    #: The snapshot that every value comes from; its version is the model version that answered.
    snapshot: Snapshot
    #: Ids without an answer, counted over the whole batch that the request was part of.
    unresolved: int = 0
    #: Makes an output that only requests that name it get; None where the model has none.
    make_asked: Callable[[str], np.ndarray] | None = None
    #: The stages of its batch, where somebody observes requests.
    stages: BatchStages | None = None

    def asked(self, name: str) -> np.ndarray:
        """Returns an output that only requests that name it get."""
        return np.empty(0, np.uint8) if self.make_asked is None else self.make_asked(name)


Answer = InferenceResult | BaseException


class ReplacedError(Exception):
    """Says that the version takes no more requests; the one after it may."""


class RequestCancelled(DeadlineExceeded):
    """Says that the caller has cancelled the request."""

    def __init__(self, message: str = "the request was cancelled") -> None:
        super().__init__(message)


def request_expired() -> DeadlineExceeded:
    """Returns the error for a request that has waited in the queue until its deadline."""
    return DeadlineExceeded("request timeout expired in the queue")


class ResponseSink(Protocol):
    """Delivers answers to the transport that submitted the requests. Equal sinks get a batch's answers together."""

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """Takes answers, on the thread that computed them; it must return quickly."""


class Waiting(Protocol):
    """Is the part of a queue that a request waiting in it uses."""

    def discard(self, request: QueuedRequest) -> bool:
        """Removes a request; returns False when a session already has it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Is a request of a batch that was drawn."""

    #: Its position in the batch.
    place: int
    id: str
    #: It is in every sample of a share above this.
    point: float


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Is a request that waits for a session. Times in ns are on the clock of `time.monotonic_ns`."""

    columns: Mapping[str, Column] = field(repr=False)
    #: Number of rows.
    batch: int
    sink: ResponseSink
    #: The key by which its sink identifies the request.
    place: Any
    arrived_ns: int
    #: The time at which it expires in the queue; 0 for never.
    deadline_ns: int = 0
    abandoned: bool = field(default=False)
    #: Whether it belongs to the canary arm.
    canary: bool = False
    #: Features that the session made of this request and others of its batch; set at the latest when it is answered.
    features: FeatureBatch | SidedFeatures | None = field(default=None, repr=False)
    #: The first row of this request in `features`.
    first_row: int = 0
    #: The priority that the caller asked for.
    priority: int = 0
    routing_key: str = ""
    #: The level of that priority; 0 is the first.
    level: int = 0
    #: The time at which it has waited longer than its level's timeout and is delayed; 0 for never.
    delay_at_ns: int = 0
    #: The queue where it waits, and its place there.
    queue: Waiting | None = None
    ticket: Ticket | None = field(default=None, repr=False)
    #: The time at which a session took it from its queue, where somebody observes requests; else 0.
    taken_ns: int = 0
    #: Its id, where somebody looks at requests; "" otherwise, and for requests that were joined.
    request_id: str = ""
    #: Those of joined requests that were drawn for whoever looks at requests.
    sampled: Sequence[Sampled] = ()

    @property
    def arrivals_ns(self) -> Sequence[int]:
        """Returns when each of the requests that it stands for arrived."""
        return (self.arrived_ns,)

    @property
    def rows_of_each(self) -> Sequence[int]:
        """Returns the rows of each of the requests that it stands for."""
        return (self.batch,)

    def discard(self) -> bool:
        """Removes it from the queue where it waits; returns False when a session already has it."""
        return self.queue is not None and self.queue.discard(self)


@dataclass(slots=True, eq=False)
class JoinedRequest(QueuedRequest):
    """Stands for several requests that the native server has read: their columns are joined, row by row."""

    place: RequestBatch

    @property
    def arrivals_ns(self) -> Sequence[int]:
        """See QueuedRequest."""
        return self.place.arrivals_ns

    @property
    def rows_of_each(self) -> Sequence[int]:
        """See QueuedRequest."""
        return self.place.rows_of_each


class Answers:
    """Collects the answers of one batch and delivers them with one wake-up for each sink, not one for each request."""

    def __init__(self) -> None:
        self._by_sink: dict[ResponseSink, list[tuple[QueuedRequest, Answer]]] = {}

    def add(self, request: QueuedRequest, answer: Answer) -> None:
        """Adds an answer."""
        self._by_sink.setdefault(request.sink, []).append((request, answer))

    def send(self) -> None:
        """Delivers the collected answers; logs a sink's exception and goes on with the next sink."""
        for sink, answers in self._by_sink.items():
            try:
                sink.deliver(answers)
            except Exception:
                logger.exception("%d answers could not be handed over", len(answers))


@dataclass(frozen=True, slots=True)
class LoopSink:
    """Delivers answers to an event loop of this process; the requests' places are futures of that loop."""

    loop: asyncio.AbstractEventLoop

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """Sets the results of the futures on their loop; does nothing if the loop was closed meanwhile."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
    for request, answer in answers:
        if request.place.done():
            continue
        if isinstance(answer, BaseException):
            request.place.set_exception(answer)
        else:
            request.place.set_result(answer)
