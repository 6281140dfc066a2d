"""Defines what looks at answered requests after their answers were sent, and draws which of them it looks at.

A request is in a sample or not by its id alone, so that all replicas of a model, and whoever joins labels later, choose
the same requests, and a larger sample holds a smaller one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from serving._front import routing_point
from serving.engine.requests import Sampled

if TYPE_CHECKING:
    from serving._front import RequestBatch
    from serving.engine.requests import InferenceResult, QueuedRequest
    from serving.protocol.signature import ModelSignature

# Another one than a model's name, so that a sample by ids says nothing about the arm of a routing key.
_SEED = b"emberline: sample of requests"


class RequestTap(Protocol):
    """Looks at a sample of the requests of a model."""

    @property
    def share(self) -> float:
        """Share of the requests that it looks at."""

    def offer(
        self, call: QueuedRequest, result: InferenceResult, sampled: Sequence[Sampled], signature: ModelSignature
    ) -> None:
        """Takes requests of a batch that was answered. It must return quickly and not raise.

        signature: of the version that answered.
        """


def new_request_id() -> str:
    """Returns an id for a request that came without one, 32 hex digits."""
    return os.urandom(16).hex()


def sample_point(request_id: str) -> float:
    """Returns a number in [0, 1) that follows from the id alone: samples of a share above it have the request."""
    return routing_point(_SEED, request_id.encode("utf-8", "surrogatepass"))


def sample_one(request_id: str, share: float) -> tuple[Sampled, ...]:
    """Returns a request that is a batch of its own if it is drawn."""
    if not request_id:
        return ()
    point = sample_point(request_id)
    return (Sampled(0, request_id, point),) if point < share else ()


def sample_batch(batch: RequestBatch, share: float) -> tuple[Sampled, ...]:
    """Returns those that are drawn of requests that the native server has read; all get an id that had none."""
    return tuple(
        Sampled(place, name.decode("utf-8", "replace"), point) for place, name, point in batch.sampled(_SEED, share)
    )
