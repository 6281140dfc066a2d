"""Notes calls of the gRPC port that have ended, for the access log and for traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from serving._front import Observer
from serving.grpc.gate import GrpcGate
from serving.observing.facts import RequestFacts
from serving.protocol.request_ids import request_id_of_metadata

_TRACEPARENT = "traceparent"
# Probes come every second, and say nothing new.
_PROBES = frozenset(("ServerLive", "ServerReady", "ModelReady"))
_INFER = frozenset(("ModelInfer", "ModelStreamInfer"))


class GrpcObserver:
    """Notes calls, and requests of streams, of the Python path."""

    def __init__(self, observer: Observer, gate: GrpcGate) -> None:
        self._observer = observer
        self._gate = gate

    def begin(self, method: str) -> RequestFacts | None:
        """Returns what is to be filled in about a call that begins; None where nobody asks for it."""
        if not self._observer.is_on or method in _PROBES:
            return None
        return RequestFacts("infer" if method in _INFER else method)

    def ended(
        self,
        facts: RequestFacts,
        context: Any,
        *,
        code: grpc.StatusCode = grpc.StatusCode.OK,
        error: str = "",
        request_bytes: int = 0,
        response_bytes: int = 0,
    ) -> None:
        """Notes that a call, or a request of a stream, has ended."""
        metadata = context.invocation_metadata()
        header_id = request_id_of_metadata(metadata)
        is_infer = facts.call == "infer"
        facts.id = facts.id or header_id
        caller = self._gate.caller(context)
        facts.note(
            self._observer,
            is_grpc=True,
            header_id=header_id,
            traceparent=_traceparent(metadata),
            address=caller.address,
            principal=self._gate.name_of(context, is_infer=is_infer),
            error=error,
            status=code.value[0],
            request_bytes=request_bytes,
            response_bytes=response_bytes,
            is_traceable=is_infer,
        )


class StreamObserver:
    """Notes the requests of one stream."""

    def __init__(self, observed: GrpcObserver, context: Any) -> None:
        self._observed = observed
        self._context = context

    def begin(self) -> RequestFacts | None:
        """Returns what is to be filled in about a request that begins; None where nobody asks for it."""
        return self._observed.begin("ModelStreamInfer")

    def ended(self, facts: RequestFacts, code: grpc.StatusCode, error: str, request_bytes: int, answer: int) -> None:
        """Notes that a request has ended. answer: bytes of its answer."""
        self._observed.ended(
            facts, self._context, code=code, error=error, request_bytes=request_bytes, response_bytes=answer
        )


def _traceparent(metadata: Iterable[Any] | None) -> str:
    found = [value for key, value in metadata or () if key == _TRACEPARENT]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else ""
