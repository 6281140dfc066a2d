"""Collects what a transport of the Python path knows of a request, until it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving._front import Observer
from serving.observing.redaction import redacted

if TYPE_CHECKING:
    from serving._front import BatchStages

# Longer texts of clients are cut.
_MAX_TEXT = 1024


@dataclass(slots=True)
class RequestFacts:
    """Describes one request. Times are on the clock of `time.monotonic_ns`."""

    call: str = ""
    model: str = ""
    version: str = ""
    snapshot: str = ""
    #: Its own id, else that of its head.
    id: str = ""
    rows: int = 0
    arrived_ns: int = field(default_factory=time.monotonic_ns)
    queued_ns: int = 0
    stages: BatchStages | None = None

    def queued(self, request_id: str) -> None:
        """Records that the request was decoded and goes to its model."""
        self.id = request_id
        self.queued_ns = time.monotonic_ns()

    def answered(self, model: str, answer: Any, request_id: str) -> None:
        """Records the answer of the model that was found; see ModelAnswer. request_id: its own, or made."""
        snapshot = answer.snapshot
        self.model, self.version, self.id = model, str(snapshot.version), request_id
        self.snapshot = f"{snapshot.version}.{snapshot.sequence}" if snapshot.id else ""
        self.rows = len(answer.outputs[0]) if answer.outputs else 0
        self.stages = answer.stages

    def note(
        self,
        observer: Observer,
        *,
        is_grpc: bool,
        header_id: str,
        traceparent: str,
        address: str,
        principal: str,
        error: str,
        status: int,
        request_bytes: int,
        response_bytes: int,
        is_traceable: bool,
    ) -> None:
        """Notes that the request has ended; see `RequestNote` of the native observer for the parameters."""
        observer.note(
            is_grpc=is_grpc,
            call=_plain(self.call),
            model=_plain(self.model),
            version=_plain(self.version),
            snapshot=self.snapshot,
            id=_plain(self.id),
            header_id=header_id,
            traceparent=_plain(traceparent),
            address=_plain(address),
            principal=_plain(principal),
            # It may repeat what the client has sent.
            error=redacted(_plain(error)) if error else "",
            status=status,
            rows=self.rows,
            request_bytes=request_bytes,
            response_bytes=response_bytes,
            arrived_ns=self.arrived_ns,
            queued_ns=self.queued_ns,
            stages=self.stages,
            is_traceable=is_traceable,
        )


def _plain(text: str) -> str:
    """Returns a text without what could not be encoded, or what a terminal would take for a command."""
    text = text[:_MAX_TEXT]
    if text.isascii():
        return text  # control characters are escaped where a line is made of it
    return "".join(letter if letter.isprintable() else "?" for letter in text)
