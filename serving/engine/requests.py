"""One request inside the engine, from the moment it is queued until its answer goes back to its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from serving.engine.batcher import RequestQueue
    from serving.engine.snapshot import Snapshot
    from serving.engine.user_side import SidedFeatures
    from storage.features import Column, FeatureBatch


@dataclass(slots=True)
class InferenceResult:
    """The answer. outputs: all of the model's, in order, finite. unresolved: ids not answered, in its whole batch.

    snapshot: the one that every value comes from; its version is the model version that answered.
    """

    outputs: list[np.ndarray]
    snapshot: Snapshot
    unresolved: int = 0


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits for a session. deadline_ns: of `time.monotonic_ns`, 0 for none. canary: its arm.

    priority: as asked for; level: of it, 0 the first. delay_at_ns: when it has waited longer than its level likes, 0
    for never. features: what the session's feature engine made of it and others, its own from `first_row` on, once it
    was answered. queue: where it waits.
    """

    columns: Mapping[str, Column]
    batch: int
    future: asyncio.Future[InferenceResult]
    loop: asyncio.AbstractEventLoop
    arrived_ns: int
    deadline_ns: int = 0
    abandoned: bool = field(default=False)
    canary: bool = False
    features: FeatureBatch | SidedFeatures | None = None
    first_row: int = 0
    priority: int = 0
    routing_key: str = ""
    level: int = 0
    delay_at_ns: int = 0
    queue: RequestQueue | None = None


class Answers:
    """Answers of one batch on their way back: one wake-up for each event loop, not one a request."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[tuple[QueuedRequest, InferenceResult | BaseException]]] = {}

    def add(self, request: QueuedRequest, answer: InferenceResult | BaseException) -> None:
        """Notes an answer."""
        self._by_loop.setdefault(request.loop, []).append((request, answer))

    def send(self) -> None:
        """Hands them over; a loop that has closed meanwhile has nobody left to tell."""
        for loop, answers in self._by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, answers)
            except RuntimeError:
                continue


def _deliver(answers: list[tuple[QueuedRequest, InferenceResult | BaseException]]) -> None:
    for request, answer in answers:
        if request.future.done():
            continue
        if isinstance(answer, BaseException):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
