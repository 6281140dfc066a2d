"""One request inside the engine, from the moment it is queued until its answer goes back to where it came in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from storage.errors import DeadlineExceeded

if TYPE_CHECKING:
    from serving.pipeline.snapshot import Snapshot
    from serving.pipeline.user_side import SidedFeatures
    from storage.features import Column, FeatureBatch


logger = logging.getLogger("emberline.serving")


@dataclass(slots=True)
class InferenceResult:
    """The answer. outputs: all of the model's, in order, finite. unresolved: ids not answered, in its whole batch.

    snapshot: the one that every value comes from; its version is the model version that answered.
    """

    outputs: list[np.ndarray]
    snapshot: Snapshot
    unresolved: int = 0


Answer = InferenceResult | BaseException


class ReplacedError(Exception):
    """The version takes no requests any more; the one after it may."""


class RequestCancelled(DeadlineExceeded):
    """The caller has given the request up."""

    def __init__(self, message: str = "the request was cancelled") -> None:
        super().__init__(message)


class ResponseSink(Protocol):
    """Where requests came in, and their answers go out. Equal sinks get the answers of a batch together."""

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """Takes answers, on whatever thread has them; it must be short."""


class Waiting(Protocol):
    """A queue, as a request that waits in it knows it."""

    def discard(self, request: QueuedRequest) -> bool:
        """Takes a request out; False when a session has it already."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits for a session. deadline_ns: of `time.monotonic_ns`, 0 for none. canary: its arm.

    place: what its sink knows it by. priority: as asked for; level: of it, 0 the first. delay_at_ns: when it has
    waited longer than its level likes, 0 for never. features: what the session's feature engine made of it and others,
    its own from `first_row` on, once it was answered. queue: where it waits.
    """

    columns: Mapping[str, Column] = field(repr=False)
    batch: int
    sink: ResponseSink
    place: Any
    arrived_ns: int
    deadline_ns: int = 0
    abandoned: bool = field(default=False)
    canary: bool = False
    features: FeatureBatch | SidedFeatures | None = field(default=None, repr=False)
    first_row: int = 0
    priority: int = 0
    routing_key: str = ""
    level: int = 0
    delay_at_ns: int = 0
    queue: Waiting | None = None

    def discard(self) -> bool:
        """Takes it out of the queue where it waits; False when a session has it already."""
        return self.queue is not None and self.queue.discard(self)


class Answers:
    """Answers of one batch on their way back: one wake-up for each sink, not one a request."""

    def __init__(self) -> None:
        self._by_sink: dict[ResponseSink, list[tuple[QueuedRequest, Answer]]] = {}

    def add(self, request: QueuedRequest, answer: Answer) -> None:
        """Notes an answer."""
        self._by_sink.setdefault(request.sink, []).append((request, answer))

    def send(self) -> None:
        """Hands them over."""
        for sink, answers in self._by_sink.items():
            try:
                sink.deliver(answers)
            except Exception:
                logger.exception("%d answers could not be handed over", len(answers))


@dataclass(frozen=True, slots=True)
class LoopSink:
    """Requests of an event loop of this process; their places are futures of that loop."""

    loop: asyncio.AbstractEventLoop

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """Settles the futures on their loop; one that has closed meanwhile has nobody left to tell."""
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
