"""Serves grpc.health.v1 and server reflection, which probes, proxies and tools expect of any gRPC server. Open to all.

Both come from gRPC's own packages; this module supplies what they report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from tritonclient.grpc import service_pb2

from serving.grpc.control import SERVICE, GrpcControl
from serving.grpc.failing import fail
from storage.errors import EmberlineError

# The greatest age of an answer, and the interval at which readiness is checked, once for all clients that watch.
_LOOK_S = 0.5

# The most calls to Watch and to reflection at a time: they last, and need no token.
MAX_LASTING_CALLS = 1024

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# The messages of both are the same; older clients know only the first, newer ones try the second.
_REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthCalls:
    """Reports whether the server is ready, under the name "" and that of the inference service, on one event loop."""

    def __init__(self, control: GrpcControl) -> None:
        self._control = control
        self._stopping = asyncio.Event()
        self._asked = -_LOOK_S
        self._status = _NOT_SERVING
        self._asking = asyncio.Lock()
        self._lasting = 0
        # Set when the status changes or the server stops; calls to Watch wait for it. It is replaced after each change.
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._watching = 0

    def stop(self) -> None:
        """Notifies the calls to Watch that the server stops, and ends them."""
        self._stopping.set()
        self._changed.set()

    def handlers(self) -> dict[str, Any]:
        """Returns the handlers by the path of the call."""
        names = (SERVICE.full_name, _HEALTH, _REFLECTION[0])
        explain = grpc.stream_stream_rpc_method_handler(
            self._bounded(reflection.aio.ReflectionServicer(names).ServerReflectionInfo),
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        return {
            f"/{_HEALTH}/Check": grpc.unary_unary_rpc_method_handler(self._check, read, write),
            f"/{_HEALTH}/Watch": grpc.unary_stream_rpc_method_handler(self._bounded(self._watch), read, write),
            **{f"/{service}/ServerReflectionInfo": explain for service in _REFLECTION},
        }

    def _bounded(self, answers: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """Wraps a handler to allow MAX_LASTING_CALLS at a time; one more ends with RESOURCE_EXHAUSTED."""

        async def call(asked: Any, context: Any) -> AsyncIterator[Any]:
            if self._lasting >= MAX_LASTING_CALLS:
                text = (
                    f"{MAX_LASTING_CALLS} calls that watch or ask for reflection are under way; try later, or use Check"
                )
                fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                return
            self._lasting += 1
            try:
                async for answer in answers(asked, context):
                    yield answer
            finally:
                self._lasting -= 1

        return call

    async def _check(self, request: Any, context: Any) -> Any:
        if not _is_known(request.service):
            fail(context, grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r}")
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=await self._now())

    async def _watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        said = None
        self._watching += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            while True:
                is_last, changed = self._stopping.is_set(), self._changed
                status = await self._now() if _is_known(request.service) else _UNKNOWN
                if status != said:
                    said = status
                    yield health_pb2.HealthCheckResponse(status=status)
                if is_last:
                    return
                await changed.wait()
        finally:
            self._watching -= 1

    async def _look(self) -> None:
        """Checks readiness at intervals while there are calls to Watch."""
        try:
            while self._watching and not self._stopping.is_set():
                await self._now()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._looking = None

    async def _now(self) -> Any:
        if self._stopping.is_set():
            return _NOT_SERVING
        async with self._asking:
            if time.monotonic() - self._asked >= _LOOK_S:
                self._know(await self._ask())
                self._asked = time.monotonic()
        return self._status

    def _know(self, status: Any) -> None:
        if status != self._status:
            self._status = status
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _ask(self) -> Any:
        try:
            answer = await self._control.call("ServerReady", b"")
        except EmberlineError:
            return _NOT_SERVING
        return _SERVING if service_pb2.ServerReadyResponse.FromString(answer).ready else _NOT_SERVING


def _is_known(service: str) -> bool:
    return service in ("", SERVICE.full_name)
