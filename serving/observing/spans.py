"""Makes OpenTelemetry spans of observed requests: one for the request, and one for each of its stages."""

from __future__ import annotations

import random
import time
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from serving._front import KeptRequest
from serving.observing.stage_times import stage_spans

# The spans of stages, by the names of STAGE_ORDER, and which of them a session computes for a whole batch.
_NAMES = {
    "read": "front end",
    "queue": "queue",
    "join": "batch join",
    "features": "features",
    "lookup": "lookup",
    "ssd": "lookup ssd",
    "graph": "graph",
    "infer": "infer",
    "encode": "encode",
}
_OF_BATCH = frozenset(("join", "features", "lookup", "graph", "infer"))
_GRPC_METHOD = "inference.GRPCInferenceService/ModelInfer"
# The least status at which the server is to blame, of HTTP; over gRPC these codes.
_LEAST_FAULT = 500
_GRPC_FAULTS = frozenset((2, 4, 12, 13, 14, 15))


class SpanMaker:
    """Makes spans. Not thread-safe."""

    def __init__(self, version: str, attributes: dict[str, Any]) -> None:
        """version: of the server. attributes: of the resource, such as service.instance.id."""
        self._resource = Resource.create({"service.name": "emberline", "service.version": version, **attributes})
        self._scope = InstrumentationScope("emberline", version)

    def spans(self, request: KeptRequest) -> list[ReadableSpan]:
        """Returns the spans of a request that was sampled, the request's own first.

        The SSD is read somewhere within the lookup, for as long as its span says; that span ends with the lookup.
        """
        # The clocks of requests have no date.
        offset_ns = time.time_ns() - time.monotonic_ns()
        trace_id = int(request.trace_id, 16)
        parent = _context(trace_id, int(request.parent_id, 16), is_remote=True) if request.parent_id else None
        own = _context(trace_id, _span_id())
        stages = list(stage_spans(request))
        batch = None
        found: list[ReadableSpan] = []

        def add(
            name: str, context: SpanContext, above: SpanContext | None, begin: int, end: int, **more: Any
        ) -> SpanContext:
            found.append(
                ReadableSpan(
                    name,
                    context=context,
                    parent=above,
                    resource=self._resource,
                    instrumentation_scope=self._scope,
                    start_time=begin + offset_ns,
                    end_time=max(begin, end) + offset_ns,
                    **more,
                )
            )
            return context

        add(
            _GRPC_METHOD if request.is_grpc else f"POST {request.call}",
            own,
            parent,
            request.arrived_ns,
            request.ended_ns,
            kind=SpanKind.SERVER,
            attributes=_attributes(request),
            status=Status(StatusCode.ERROR, request.error or None) if _is_fault(request) else Status(StatusCode.UNSET),
        )
        if request.stages is not None:
            ends = [(begin, end) for name, begin, end in stages if name in _OF_BATCH]
            batch = add(
                "batch",
                _context(trace_id, _span_id()),
                own,
                ends[0][0],
                ends[-1][1],
                attributes={
                    "emberline.batch.rows": request.stages.rows,
                    "emberline.batch.requests": request.stages.requests,
                    "emberline.session": request.stages.session,
                },
            )
        lookup = None
        for name, begin, end in stages:
            above = batch if name in _OF_BATCH else lookup if name == "ssd" else own
            context = add(
                _NAMES[name],
                _context(trace_id, _span_id()),
                above,
                begin,
                end,
                attributes=_tiers(request) if name in ("lookup", "infer") else None,
            )
            lookup = context if name == "lookup" else lookup
        return found


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))


def _span_id() -> int:
    return random.getrandbits(64) or 1


def _is_fault(request: KeptRequest) -> bool:
    return request.status in _GRPC_FAULTS if request.is_grpc else request.status >= _LEAST_FAULT


def _attributes(request: KeptRequest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "emberline.model": request.model,
        "emberline.model.version": request.version,
        "emberline.snapshot": request.snapshot,
        "emberline.request.id": request.id,
        "emberline.request.header_id": request.header_id if request.header_id != request.id else "",
        "emberline.principal": request.principal,
        "client.address": request.address,
        "emberline.rows": request.rows,
    }
    if request.is_grpc:
        found |= {
            "rpc.system.name": "grpc",
            "rpc.method": _GRPC_METHOD,
            "rpc.response.status_code": str(request.status),
        }
    else:
        found |= {"http.request.method": "POST", "http.response.status_code": request.status}
        found |= {"http.request.size": request.request_bytes, "http.response.size": request.response_bytes}
    return {name: value for name, value in found.items() if value != ""}


def _tiers(request: KeptRequest) -> dict[str, int] | None:
    """Returns the ids of the batch by the tier that had their rows."""
    stages = request.stages
    if stages is None:
        return None
    counts = {
        "hbm": stages.hbm,
        "overlay": stages.overlay,
        "dram": stages.dram,
        "ssd": stages.ssd,
        "absent": stages.absent,
        "unresolved": stages.unresolved,
    }
    return {f"emberline.ids.{tier}": count for tier, count in counts.items()}
